//! What happens to the fleet, and what comes of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::figures::{Loss, Moves, Sight};
use crate::server::Server;
use crate::stream::EVERY;
use crate::world::{SERVERS, World};

/// How long viewers take to come: in haste, or so slowly that beats tell of most of them.
const FILLS: Duration = Duration::from_secs(15);
const FILLS_SLOWLY: Duration = Duration::from_secs(100);
/// The time before something happens, and after it: a dead server is missed, and viewers settle at
/// others.
const BEFORE: Duration = Duration::from_secs(4);
const AFTER: Duration = Duration::from_secs(12);
/// For how long the network is divided: QUIC gives up its connections.
const DIVIDED: Duration = Duration::from_secs(18);
/// For how long all servers are away.
const OUTAGE: Duration = Duration::from_secs(10);
/// A viewer goes and another comes so often, and has arrived so long after that.
const CHANGES: Duration = Duration::from_secs(1);
const ARRIVES: Duration = Duration::from_secs(3);

/// What is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Viewers come and stay.
    Steady,
    /// One server dies, or two at once.
    Dies,
    TwoDie,
    Drains,
    /// Three servers and half of the viewers do not reach the two others and theirs, for a while.
    Divided,
    /// All servers die, and three of them start again.
    AllDie,
}

impl Scenario {
    pub(crate) const ALL: [Self; 6] = [
        Self::Steady,
        Self::Dies,
        Self::TwoDie,
        Self::Drains,
        Self::Divided,
        Self::AllDie,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Steady => "nothing",
            Self::Dies => "a server dies",
            Self::TwoDie => "two die at once",
            Self::Drains => "a server drains",
            Self::Divided => "three servers and half of the viewers are cut off for 18 s",
            Self::AllDie => "all die, three are back after 10 s",
        }
    }
}

/// A run.
pub(crate) struct Run {
    pub(crate) world: World,
    /// When something happened.
    pub(crate) happened: Instant,
    pub(crate) sight: Sight,
    pub(crate) moves: Moves,
    /// Viewers who had a part of a segment of a server that died.
    pub(crate) amid: usize,
    /// Viewers who knew no server that they still reached.
    pub(crate) strangers: BTreeSet<usize>,
    /// Viewers of the fullest server when all had come, and of each on average.
    pub(crate) load: (u32, f64),
    /// The server to which something happened, and how long it had to send its viewers away.
    pub(crate) first: usize,
    pub(crate) time_to_leave: Duration,
    /// How many servers each of them knew while the network was divided.
    pub(crate) rosters_amid: Vec<usize>,
}

impl Run {
    /// The same seed gives the same run.
    pub(crate) fn new(scenario: Scenario, seed: u64) -> Self {
        let fills = match scenario {
            Scenario::Steady => FILLS_SLOWLY,
            _ => FILLS,
        };
        let mut world = World::new(seed, fills, BEFORE + EVERY + DIVIDED + AFTER + ARRIVES);
        let full = world.net.now;
        let load = world.load();
        if scenario != Scenario::Steady {
            world.pass_with_changes(BEFORE, CHANGES);
            // At any time between two segments.
            let time = world.net.between(0, 2000);
            world.pass(time);
        }
        let mut run = Self {
            happened: world.net.now,
            world,
            sight: Sight::default(),
            moves: Moves::default(),
            amid: 0,
            strangers: BTreeSet::new(),
            load,
            first: usize::try_from(seed).expect("it is small") % SERVERS,
            time_to_leave: Duration::ZERO,
            rosters_amid: Vec::new(),
        };
        let loss = run.happen(scenario);
        run.world.pass(ARRIVES);
        run.sight = run.world.sight(&(full..run.world.net.now));
        run.moves = run.world.moves(&loss);
        run
    }

    fn happen(&mut self, scenario: Scenario) -> Loss {
        let (world, first) = (&mut self.world, self.first);
        match scenario {
            Scenario::Steady => {
                let loss = world.losers(&[]);
                world.pass(AFTER);
                loss
            }
            Scenario::Dies | Scenario::TwoDie => {
                let dead = match scenario {
                    Scenario::TwoDie => vec![first, (first + 2) % SERVERS],
                    _ => vec![first],
                };
                world.kill(&dead);
                let loss = world.losers(&[]);
                let is_amid = |viewer: &&usize| world.viewers[**viewer].is_amid();
                self.amid = loss.viewers.iter().filter(is_amid).count();
                world.pass_with_changes(AFTER, CHANGES);
                loss
            }
            Scenario::Drains => {
                let loss = world.losers(&[first]);
                let server = &world.servers[first];
                self.time_to_leave = server.fleet.time_to_leave(server.viewers());
                world.drain(first);
                world.pass_with_changes(AFTER, CHANGES);
                loss
            }
            Scenario::Divided => {
                world.divide(true);
                let loss = world.losers(&[]);
                let is_stranger = |viewer: &usize| !world.knows_any(*viewer);
                self.strangers = world.here().filter(is_stranger).collect();
                world.pass_with_changes(DIVIDED, CHANGES);
                self.rosters_amid = world.servers.iter().map(Server::roster).collect();
                world.divide(false);
                world.pass_with_changes(AFTER, CHANGES);
                loss
            }
            Scenario::AllDie => {
                world.kill(&[0, 1, 2, 3, 4]);
                world.pass(OUTAGE);
                for server in [first, first + 2, first + 3] {
                    world.revive(server % SERVERS);
                }
                self.strangers = world.here().collect();
                let (at, viewers) = (world.net.now, world.here().collect());
                world.pass(AFTER);
                Loss { at, viewers }
            }
        }
    }

    /// How many servers each of those that live knows in the end, itself among them.
    pub(crate) fn rosters(&self) -> impl Iterator<Item = usize> {
        let servers = self.world.servers.iter().zip(&self.world.net.sites);
        let alive = servers.filter(|(_, site)| site.is_alive);
        alive.map(|(server, _)| server.roster())
    }

    /// Everything that happened.
    pub(crate) fn story(&self) -> Vec<String> {
        self.world.story()
    }
}
