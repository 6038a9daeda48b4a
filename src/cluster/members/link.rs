//! The side that asks: it connects to a member of the list, and hears its beats.
//!
//! A task for each member. It connects again when the connection is lost, after pauses that grow
//! until the member is heard. A member that is dead is noticed by [`IDLE_TIMEOUT_MS`], sooner than
//! the roster forgets it.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncs_net::endpoint::INITIAL_RTT;
use ncs_net::tls::fleet_client_config;
use ncs_proto::wire::message::REASON_MAX;
use ncs_proto::wire::text::plain;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, ReadExactError,
    RecvStream, TransportConfig, VarInt,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::Refusal;
use super::list::Member;
use super::publisher::Publisher;
use crate::cluster::beat::{BYTES_MAX, Beat, Name, Unfit};
use crate::cluster::engine::{Heard, Message, pause};
use crate::cluster::roster::INTERVAL;

/// The sockets from which members are reached. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    v4: Option<Endpoint>,
    v6: Option<Endpoint>,
    /// Lookups of names that run at a time. Each holds a thread, even if nobody waits any more.
    lookups: Arc<Semaphore>,
}

impl Dialer {
    /// Opens a socket of each family that this machine has.
    pub(super) fn open() -> std::io::Result<Self> {
        let (v4, v6) = (
            endpoint(Ipv4Addr::UNSPECIFIED.into()),
            endpoint(Ipv6Addr::UNSPECIFIED.into()),
        );
        if let (Err(_), Err(_)) = (&v4, &v6) {
            return v4.map(|_| unreachable!("it is an error"));
        }
        Ok(Self {
            v4: v4.ok(),
            v6: v6.ok(),
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
        })
    }

    /// The addresses of a host.
    async fn addresses(&self, host: String, port: u16) -> Result<Vec<SocketAddr>, String> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let place = Arc::clone(&self.lookups).acquire_owned().await;
        let looked_up = tokio::spawn(async move {
            let _place = place;
            let found = tokio::net::lookup_host((host.as_str(), port)).await;
            found
                .map(|found| found.take(ADDRESSES_MAX).collect::<Vec<_>>())
                .map_err(|error| format!("{host}: {error}"))
        });
        looked_up.await.map_err(|error| error.to_string())?
    }

    async fn connect(
        &self,
        config: &ClientConfig,
        address: SocketAddr,
        host: &str,
    ) -> Result<Connection, String> {
        let endpoint = match address {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(_) => &self.v6,
        };
        let endpoint = endpoint
            .as_ref()
            .ok_or_else(|| format!("{address}: this machine has no address of its family"))?;
        let connecting = endpoint
            .connect_with(config.clone(), address, host)
            .map_err(|error| format!("{address}: {error}"))?;
        match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(format!("{address}: {}", fault(&error))),
            Err(_) => Err(format!("{address} does not answer")),
        }
    }
}

fn endpoint(address: IpAddr) -> std::io::Result<Endpoint> {
    let socket = UdpSocket::bind((address, 0))?;
    let runtime = Arc::new(quinn::TokioRuntime);
    Endpoint::new(EndpointConfig::default(), None, socket, runtime)
}

/// The way to a member.
#[derive(Debug)]
pub(super) struct Link {
    /// The name of this server. None if this process only listens.
    pub(super) own: Option<Name>,
    pub(super) member: Member,
    pub(super) dialer: Dialer,
    /// Has the secret.
    pub(super) publisher: Publisher,
    pub(super) heard: mpsc::Sender<Heard>,
}

impl Link {
    /// Hears the member's beats until this is dropped. Waits for `delay` first.
    pub(super) async fn run(self, delay: Duration) {
        tokio::time::sleep(delay).await;
        let config = loop {
            match fleet_client_config(self.member.fingerprint.clone()) {
                Ok(tls) => break client_config(tls),
                Err(error) => self.say(&error.to_string()),
            }
            tokio::time::sleep(LINE_EVERY).await;
        };
        let mut attempts = 0_usize;
        let mut said: Option<(Instant, String)> = None;
        loop {
            let Err(Ended { reason, heard_for }) = self.attempt(&config, attempts).await;
            let now = Instant::now();
            // Who was heard may come back soon, and lives only until its fourth beat is due.
            if heard_for >= INTERVAL {
                attempts = 0;
            }
            // The other side can cause these lines.
            if heard_for >= LINE_EVERY {
                said = None;
            }
            let is_known = said
                .as_ref()
                .is_some_and(|(at, text)| *text == reason || *at + LINE_EVERY > now);
            if !is_known {
                self.say(&reason);
                said = Some((now, reason));
            }
            tokio::time::sleep(pause(attempts)).await;
            attempts = attempts.saturating_add(1);
        }
    }

    fn say(&self, reason: &str) {
        tracing::warn!(
            server = %self.member.name,
            address = self.member.address.as_str(),
            reason,
            "a member of the list is not reached: trying again",
        );
    }

    /// Connects and hears beats until that fails. Each attempt begins with another address.
    async fn attempt(&self, config: &ClientConfig, turn: usize) -> Result<Infallible, Ended> {
        let (host, port) = self.member.place()?;
        let found = self.dialer.addresses(host.clone(), port);
        let found = timeout(LOOKUP_TIMEOUT, found).await;
        let found = found.map_err(|_| format!("{host}: no name server answers"))?;
        let mut addresses = found?;
        let first = turn.checked_rem(addresses.len()).unwrap_or(0);
        addresses.rotate_left(first);
        let mut reason = format!("{host} has no address");
        for address in addresses {
            match self.dialer.connect(config, address, &host).await {
                Ok(connection) => return self.hear(&connection).await,
                Err(fault) => reason = fault,
            }
        }
        Err(reason.into())
    }

    /// Shows the secret, and takes beats and messages.
    async fn hear(&self, connection: &Connection) -> Result<Infallible, Ended> {
        let mut stream = self.greet(connection).await?;
        let mut bytes = [0; BYTES_MAX];
        let mut first_at = None;
        let reason = loop {
            let next = timeout(SILENCE_MAX, read(&mut stream, &mut bytes));
            let heard = match next.await {
                Ok(Ok(frame)) => self.take(frame),
                Ok(Err(Fault::Long(length))) => {
                    let _ = self.heard.send(Heard::Unfit(Unfit::Long(length))).await;
                    break format!("a beat of {length} bytes, at most {BYTES_MAX}");
                }
                Ok(Err(Fault::Lost)) => {
                    let reason = connection.close_reason();
                    break reason.map_or_else(
                        || "it has ended its beats".to_owned(),
                        |error| fault(&error),
                    );
                }
                Err(_) => break "its beats do not come".to_owned(),
            };
            let pause = match heard {
                Heard::Message(_) => MESSAGES_APART,
                _ => BEATS_APART,
            };
            if matches!(heard, Heard::Beat(_)) {
                first_at.get_or_insert_with(Instant::now);
            }
            if self.heard.send(heard).await.is_err() {
                break "nobody hears any more".to_owned();
            }
            // A member that says more than others gets no more attention.
            tokio::time::sleep(pause).await;
        };
        Err(Ended {
            reason,
            heard_for: first_at.map_or(Duration::ZERO, |at| at.elapsed()),
        })
    }

    /// Shows the secret. Returns the stream on which beats and messages come.
    async fn greet(&self, connection: &Connection) -> Result<RecvStream, String> {
        let secrets = self.publisher.secrets().ok_or("there is no secret yet")?;
        let greeting = async {
            let (mut send, receive) = connection.open_bi().await.map_err(|error| fault(&error))?;
            // If it fails, reading says why.
            let name = self.own.iter().map(|own| format!("\n{own}"));
            let name: String = name.collect();
            let greeting = [secrets.shown(), name.as_bytes()].concat();
            let _ = send.write_all(&greeting).await;
            let _ = send.finish();
            Ok(receive)
        };
        timeout(CONNECT_TIMEOUT, greeting)
            .await
            .map_err(|_| "it takes no stream".to_owned())?
    }

    /// A member speaks for itself alone.
    fn take(&self, bytes: &[u8]) -> Heard {
        if let Some((&super::MESSAGE, content)) = bytes.split_first() {
            let content = Bytes::copy_from_slice(content);
            return Heard::Message(Message::read(self.member.name.clone(), content));
        }
        match Beat::from_bytes(bytes) {
            Ok(beat) if beat.server == self.member.name => Heard::Beat(Box::new(beat)),
            Ok(beat) => Heard::Unfit(Unfit::Form(format!(
                "a beat of {} came from {}",
                beat.server, self.member.name
            ))),
            Err(unfit) => Heard::Unfit(unfit),
        }
    }
}

/// Why an attempt has ended.
struct Ended {
    reason: String,
    /// The time from the first beat to the end, zero if none came.
    heard_for: Duration,
}

impl From<String> for Ended {
    fn from(reason: String) -> Self {
        Self {
            reason,
            heard_for: Duration::ZERO,
        }
    }
}

/// Why there is no further beat.
enum Fault {
    /// The next one has more bytes than any.
    Long(usize),
    /// The stream or the connection has ended.
    Lost,
}

impl From<ReadExactError> for Fault {
    fn from(_: ReadExactError) -> Self {
        Self::Lost
    }
}

/// Reads the next frame into `bytes`.
async fn read<'a>(
    stream: &mut RecvStream,
    bytes: &'a mut [u8; BYTES_MAX],
) -> Result<&'a [u8], Fault> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).await?;
    let length = usize::from(u16::from_be_bytes(length));
    let bytes = bytes.get_mut(..length).ok_or(Fault::Long(length))?;
    stream.read_exact(bytes).await?;
    Ok(bytes)
}

/// Describes why a connection ended. The other side's text is made safe to show.
fn fault(error: &ConnectionError) -> String {
    if let ConnectionError::ApplicationClosed(close) = error {
        let known = Refusal::ALL
            .iter()
            .find(|one| one.code() == close.error_code);
        return match known {
            Some(refusal) => format!("it refuses this server: {refusal}"),
            None => "it has closed the connection".to_owned(),
        };
    }
    plain(&error.to_string(), REASON_MAX)
}

/// A member sends on one stream, and little.
fn client_config(tls: QuicClientConfig) -> ClientConfig {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(VarInt::from_u32(IDLE_TIMEOUT_MS).into()));
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    transport.initial_rtt(INITIAL_RTT);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    transport.stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW));
    transport.receive_window(VarInt::from_u32(RECEIVE_WINDOW));
    transport.datagram_receive_buffer_size(None);
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    config
}

/// How long a handshake may take, and then the opening of the stream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
const LOOKUPS_MAX: usize = 16;
/// Addresses of a member that are tried.
const ADDRESSES_MAX: usize = 8;
/// A connection on which no packet comes for this long is lost. Three of four pings have then had
/// no answer.
const IDLE_TIMEOUT_MS: u32 = 4_000;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A connection without beats is of no use: another one may reach a process that beats.
const SILENCE_MAX: Duration = Duration::from_secs(6);
/// The least time between two beats of a member. More of them wait in its own process.
const BEATS_APART: Duration = Duration::from_millis(100);
/// The least time between two messages of a member.
const MESSAGES_APART: Duration = Duration::from_millis(5);
/// A few beats, or some hundred short messages. They delay a beat by a second or two at most.
const RECEIVE_WINDOW: u32 = 16 << 10;
/// The time between two lines about a member.
const LINE_EVERY: Duration = Duration::from_secs(10);
