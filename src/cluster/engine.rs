//! What carries beats from a server to the others: nothing, or NATS.
//!
//! This is the whole of what the fleet asks of an engine, and nothing waits for it. A beat that
//! cannot be sent now is dropped, because the next one says more.

use serde::{Deserialize, Serialize};

use super::beat::{Beat, Unfit};
use super::nats::{self, Nats};

/// The kinds of engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The server is alone.
    #[default]
    None,
    /// Servers of NATS.
    Nats,
}

/// An engine that is open, whether or not it can be reached.
#[derive(Debug)]
pub enum Engine {
    /// There is none.
    None,
    /// Beats come from everybody, this server too.
    Nats(Box<Nats>),
}

/// What an engine brings.
#[derive(Debug)]
pub enum Heard {
    /// A beat.
    Beat(Beat),
    /// A message that is not a valid beat.
    Unfit(Unfit),
    /// Whether the engine is reached may have changed.
    News,
    /// The engine refuses something, and goes on.
    Complaint(String),
}

impl Engine {
    /// Opens the engine of a configuration. It need not be reachable. `client` is what it calls
    /// this process.
    pub async fn open(kind: Kind, nats: &nats::Config, client: &str) -> Result<Self, nats::Error> {
        match kind {
            Kind::None => Ok(Self::None),
            Kind::Nats => Nats::open(nats, client).await.map(Box::new).map(Self::Nats),
        }
    }

    /// Whether the engine is reached, or the last reason why it is not.
    pub fn reached(&self) -> Result<(), String> {
        match self {
            Self::None => Ok(()),
            Self::Nats(nats) => nats.reached(),
        }
    }

    /// Tells everybody a beat. Whether it was sent; the last one of a server has then left this
    /// process. `None` without an engine.
    pub async fn tell(&self, beat: &Beat) -> Option<bool> {
        match self {
            Self::None => None,
            Self::Nats(nats) => Some(nats.tell(beat).await),
        }
    }

    /// What comes next. Cancelling this loses nothing.
    pub async fn hear(&mut self) -> Heard {
        match self {
            Self::None => std::future::pending().await,
            Self::Nats(nats) => nats.hear().await,
        }
    }
}
