//! Assembly: starts the parts in order, and stops them in order.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Effect, Loaded, Sources, changes};
use crate::telemetry::{self, Logs, Readiness};
use crate::tls::{self, ServerIdentity};

/// What concerns the process as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long open requests may take to finish after SIGTERM.
    #[serde(with = "crate::config::duration")]
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(10) }
    }
}

/// Why the server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Logs or the metrics listener.
    #[error("telemetry: {0}")]
    Telemetry(#[from] telemetry::Error),
    /// A series cannot be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The certificate.
    #[error("certificate: {0}")]
    Tls(#[from] tls::Error),
    /// The system does not let this process hear signals.
    #[error("signals: {0}")]
    Signals(#[source] std::io::Error),
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(sources: Sources, loaded: Loaded) -> Result<(), Error> {
    let logs = telemetry::init(&loaded.config.telemetry)?;
    let registry = telemetry::registry()?;
    let readiness = Readiness::new();
    let identity = ServerIdentity::open(&loaded.config.tls)?;
    let listener = telemetry::serve(&loaded.config.telemetry, registry, readiness.clone())?;
    tracing::info!("metrics on http://{}/metrics", listener.address());
    tracing::info!("certificate fingerprint {}", identity.fingerprint());
    for finding in &loaded.findings {
        tracing::warn!("{finding}");
    }
    announce_streams(&readiness, &loaded);
    readiness.ready("server");
    notify(sd_notify::NotifyState::Ready);
    let mut running = Running { sources, loaded, logs, identity, readiness };
    running.until_stopped().await?;
    notify(sd_notify::NotifyState::Stopping);
    tracing::info!("stopped");
    Ok(())
}

struct Running {
    sources: Sources,
    loaded: Loaded,
    logs: Logs,
    identity: ServerIdentity,
    readiness: Readiness,
}

impl Running {
    async fn until_stopped(&mut self) -> Result<(), Error> {
        let listen = |kind| signal(kind).map_err(Error::Signals);
        let (mut hangup, mut terminate, mut interrupt): (Signal, Signal, Signal) =
            (listen(SignalKind::hangup())?, listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        loop {
            tokio::select! {
                _ = hangup.recv() => self.reload(),
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
            }
        }
    }

    /// Takes a new configuration whole, or leaves everything as it is.
    fn reload(&mut self) {
        let next = match self.sources.load() {
            Ok(next) => next,
            Err(error) => return tracing::error!("the configuration stays as it is: {error}"),
        };
        match self.identity.reload(&next.config.tls) {
            Ok(true) => tracing::info!("certificate fingerprint {}", self.identity.fingerprint()),
            Ok(false) => {}
            Err(error) => return tracing::error!("the configuration and the certificate stay as they are: {error}"),
        }
        if let Err(error) = self.logs.set_filter(&next.config.telemetry.log_filter) {
            tracing::error!("{error}");
        }
        for change in changes(&self.loaded.config, &next.config) {
            match change.effect {
                Effect::Restart => tracing::warn!("{change}"),
                Effect::Live | Effect::NewSegments => tracing::info!("{change}"),
            }
        }
        announce_streams(&self.readiness, &next);
        self.loaded = next;
        tracing::info!("configuration reloaded");
    }
}

fn announce_streams(readiness: &Readiness, loaded: &Loaded) {
    if loaded.config.stream.is_empty() { readiness.not_ready("streams", "no streams") } else { readiness.ready("streams") }
}

/// Tells systemd, if it started this process and asked to be told.
fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
