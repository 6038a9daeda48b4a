//! The sockets of all addresses, and the change from one process to the next.
//!
//! A server that can be upgraded while it serves opens twice as many sockets as it has workers: one
//! half for itself, the other for the process that takes its place. That one gets all of them, and
//! nobody binds anything again. So they stay in the kernel's order, by which [`steering`] counts
//! them. At first the new process is given no packets. Then it takes newcomers
//! ([`Ports::take_newcomers`]), while the connections of the old process stay with that one. When
//! the old process has ended, all packets go to the new one ([`Ports::stay_alone`]), which resets
//! what is left of such connections. The half of the old process waits for the next upgrade.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::SockRef;

use super::steering::Plan;
use super::{Config, Error, sockets, steering};

/// The most processes that share an address: one that serves, and one that ends.
pub(super) const PROCESSES: u8 = 2;

/// The sockets of a server, and its part of them.
#[derive(Debug)]
pub struct Ports {
    pub(super) ports: Vec<Port>,
    /// The part of this process, and the number in its connection ids.
    pub(super) process: u8,
    /// Whether another process has connections on these sockets.
    pub(super) is_beside: Arc<AtomicBool>,
}

/// The sockets of one address.
#[derive(Debug)]
pub struct Port {
    /// The address in the configuration.
    pub configured: SocketAddr,
    /// Those of the first process in the order of their workers, then those of the second.
    pub sockets: Vec<UdpSocket>,
    /// The number of processes that have a part of them.
    processes: u8,
}

/// Why a process cannot use the sockets of another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// The addresses have changed.
    #[error(
        "the process that serves listens on {theirs}, and `endpoint.listen` says {ours}: stop it \
         first"
    )]
    Addresses {
        /// Those of the other process.
        theirs: String,
        /// Those of the configuration.
        ours: String,
    },
    /// The sockets are no equal parts.
    #[error("the process that serves has {0} sockets on an address, which are no equal parts")]
    Parts(usize),
}

impl Ports {
    /// Opens sockets for this process, and for a next one if there may be one.
    pub fn open(config: &Config, may_be_replaced: bool) -> Result<Self, Error> {
        let processes = if may_be_replaced { PROCESSES } else { 1 };
        let open = |&configured: &SocketAddr| {
            let sockets = sockets::open(config, processes, configured, steering::attach);
            let sockets = sockets.map_err(|source| Error::Bind {
                address: configured,
                source,
            })?;
            // There is one alone if the system refuses several.
            let is_shared = sockets.len() > 1;
            Ok(Port {
                configured,
                sockets,
                processes: if is_shared { processes } else { 1 },
            })
        };
        Ok(Self {
            ports: config
                .listen
                .iter()
                .map(open)
                .collect::<Result<_, Error>>()?,
            process: 0,
            is_beside: Arc::default(),
        })
    }

    /// Takes the sockets of another process, which serves still, as its next process with the
    /// number `process`.
    pub fn take(config: &Config, ports: Vec<Port>, process: u8) -> Result<Self, NotTaken> {
        let theirs: Vec<SocketAddr> = ports.iter().map(|port| port.configured).collect();
        let is_same = theirs.len() == config.listen.len()
            && config.listen.iter().all(|address| theirs.contains(address));
        if !is_same {
            let text = |addresses: &[SocketAddr]| {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                addresses.join(", ")
            };
            return Err(NotTaken::Addresses {
                theirs: text(&theirs),
                ours: text(&config.listen),
            });
        }
        let is_odd = |port: &&Port| {
            let sockets = port.sockets.len();
            sockets == 0 || !sockets.is_multiple_of(usize::from(PROCESSES)) || sockets > SOCKETS_MAX
        };
        if let Some(port) = ports.iter().find(is_odd) {
            return Err(NotTaken::Parts(port.sockets.len()));
        }
        let workers = config.sockets.count();
        if let Some(port) = ports.iter().find(|port| port.workers() != workers) {
            tracing::warn!(
                sockets = port.workers(),
                wanted = workers,
                "the number of sockets stays as it is until all processes have ended",
            );
        }
        Ok(Self {
            ports,
            process: process.min(PROCESSES - 1),
            is_beside: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Whether another process can take the place of this one: it has sockets of its own on all
    /// addresses.
    pub fn may_be_replaced(&self) -> bool {
        self.ports.iter().all(|port| port.processes == PROCESSES)
    }

    /// Whether another process has connections on these sockets.
    pub fn is_beside(&self) -> bool {
        self.is_beside.load(Ordering::Relaxed)
    }

    /// The number of the process that takes the place of this one.
    pub fn next_process(&self) -> u8 {
        (self.process + 1) % PROCESSES
    }

    /// The sockets of each address.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// From now on this process gets all new clients. Those of the other process stay with it.
    pub fn take_newcomers(&self) -> io::Result<()> {
        self.steer(true)
    }

    /// A next process may have taken the new clients, and does not serve: this one gets them again.
    pub fn keep_newcomers(&self) -> io::Result<()> {
        match self.may_be_replaced() {
            true => self.steer(self.is_beside()),
            false => Ok(()),
        }
    }

    /// The other process has ended: this one gets all packets.
    pub fn stay_alone(&self) -> io::Result<()> {
        self.is_beside.store(false, Ordering::Relaxed);
        self.steer(false)
    }

    /// Another process takes new clients from now on.
    pub fn note_replaced(&self) {
        self.is_beside.store(true, Ordering::Relaxed);
    }

    fn steer(&self, is_beside: bool) -> io::Result<()> {
        for port in &self.ports {
            let plan = Plan {
                workers: port.workers(),
                process: self.process,
                other: is_beside.then_some(self.next_process()),
            };
            let socket = SockRef::from(&port.sockets[0]);
            steering::attach(&socket, &steering::program(&plan))?;
        }
        Ok(())
    }
}

impl Port {
    /// The sockets of an address that another process has opened for itself and the next one.
    pub fn handed(configured: SocketAddr, sockets: Vec<UdpSocket>) -> Self {
        Self {
            configured,
            sockets,
            processes: PROCESSES,
        }
    }

    /// The number of sockets of each process.
    pub(super) fn workers(&self) -> u8 {
        let workers = self.sockets.len() / usize::from(self.processes);
        u8::try_from(workers).unwrap_or(u8::MAX)
    }

    /// Those of one process, in the order of its workers.
    pub(super) fn of(&self, process: u8) -> io::Result<Vec<UdpSocket>> {
        let workers = usize::from(self.workers());
        let before = usize::from(process) * workers;
        let sockets = self.sockets.iter().skip(before).take(workers);
        sockets.map(UdpSocket::try_clone).collect()
    }
}

/// More sockets on one address are none that this program has opened.
const SOCKETS_MAX: usize = 128;
