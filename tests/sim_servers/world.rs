//! Five servers and their viewers, and what happens to them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ncserverd::wire::CloseCode;
use rand::RngExt as _;

use crate::net::{Half, Net, Packet, Site, Way, What, Wire, WireId};
use crate::server::Server;
use crate::stream::Stream;
use crate::viewer::Viewer;

pub(crate) const SERVERS: usize = 5;
pub(crate) const VIEWERS: usize = 200;
/// Viewers that a server takes.
const PLACES: u32 = 100;
/// Servers hear each other first, before viewers come.
const MEET: Duration = Duration::from_secs(3);
/// More events than a run has, so that one that does not get on fails.
const EVENTS_MAX: u64 = 5_000_000;

pub(crate) struct World {
    pub(crate) net: Net,
    pub(crate) start: Instant,
    pub(crate) stream: Stream,
    pub(crate) servers: Vec<Server>,
    pub(crate) viewers: Vec<Viewer>,
}

impl World {
    /// Servers that know each other, and viewers who come to them within this time.
    pub(crate) fn new(seed: u64, fills: Duration, lasts: Duration) -> Self {
        let mut net = Net::new(seed);
        let start = net.now;
        for number in 0..SERVERS {
            let delay = net.between(1, 5);
            net.sites.push(Site {
                address: format!("s{number}.example:4443"),
                delay,
                half: if number < 3 { Half::Left } else { Half::Right },
                is_alive: true,
            });
        }
        let stream = Stream::new(start, MEET + fills + lasts, seed);
        let servers = (0..SERVERS).map(|number| Server::new((number, 1), &mut net, PLACES));
        let mut world = Self {
            servers: servers.collect(),
            net,
            start,
            stream,
            viewers: Vec::new(),
        };
        world.pass(MEET);
        for _ in 0..VIEWERS {
            world.join();
            world.pass(fills / u32::try_from(VIEWERS).expect("there are few"));
        }
        world
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.net.now + time;
        while let Some(what) = self.net.next(until) {
            self.happened(what);
            assert!(self.net.events < EVENTS_MAX, "there is no end");
        }
    }

    /// The same, while now and then a viewer goes and another comes.
    pub(crate) fn pass_with_changes(&mut self, time: Duration, every: Duration) {
        let until = self.net.now + time;
        while self.net.now + every <= until {
            let here: Vec<usize> = self.here().collect();
            let goes = here[self.net.random.random_range(0..here.len())];
            self.viewers[goes].leave(&mut self.net);
            self.join();
            self.pass(every);
        }
        self.pass(until - self.net.now);
    }

    /// Viewers that have not gone.
    pub(crate) fn here(&self) -> impl Iterator<Item = usize> {
        (0..self.viewers.len()).filter(|viewer| self.viewers[*viewer].seen.went.is_none())
    }

    /// A viewer comes to any server that takes newcomers, as names lead to those that run.
    pub(crate) fn join(&mut self) {
        let number = self.net.add_home();
        let half = self.net.homes[number].half;
        let is_there = |server: &usize| {
            let site = &self.net.sites[*server];
            site.is_alive && self.servers[*server].is_open() && self.net.reaches(half, site.half)
        };
        let open: Vec<usize> = (0..SERVERS).filter(is_there).collect();
        let server = open[self.net.random.random_range(0..open.len())];
        let home = self.servers[server].alternate();
        let mut viewer = Viewer::new(number, server, home, &mut self.net);
        viewer.turn(&mut self.net, &self.stream);
        self.viewers.push(viewer);
    }

    fn happened(&mut self, what: What) {
        let (net, stream) = (&mut self.net, &self.stream);
        match what {
            What::Packet(wire, way, packet) => {
                if !net.arrives(wire, way) {
                    return;
                }
                match way {
                    Way::Up => self.up(wire, packet),
                    Way::Down => self.down(wire, packet),
                }
            }
            What::Again(wire, way, number) => net.again(wire, way, number),
            What::Viewer(viewer) => self.viewers[viewer].wake(net, stream),
            What::Session(wire) => {
                let server = net.wires[wire].server;
                if net.sites[server].is_alive {
                    self.servers[server].wake(wire, net, stream);
                }
            }
            What::Server(server) => {
                if net.sites[server].is_alive {
                    self.servers[server].tick(net, stream);
                }
            }
            What::Beat(from, to, beat) => {
                let halves = [from, to].map(|server| net.sites[server].half);
                if net.sites[to].is_alive && net.reaches(halves[0], halves[1]) {
                    self.servers[to].hear(net, &beat);
                }
            }
        }
    }

    /// A packet has come to a server.
    fn up(&mut self, wire: WireId, packet: Packet) {
        let (net, stream) = (&mut self.net, &self.stream);
        let Wire { viewer, server, .. } = net.wires[wire];
        let address = self.viewers[viewer].address;
        let server = &mut self.servers[server];
        match packet {
            Packet::Initial => server.greeted(wire, net),
            _ if !server.knows(wire) => net.send(wire, Way::Down, Packet::Reset),
            Packet::Close(..) => server.closed(wire, net),
            _ if server.has_closed(wire) => server.close_again(wire, net),
            Packet::Ack(number) => {
                server.heard(wire, net.now);
                net.acknowledged(wire, Way::Down, number);
            }
            Packet::Piece(number, bytes) => {
                server.heard(wire, net.now);
                let pieces = net.take(wire, Way::Up, number, bytes);
                server.control(wire, address, pieces, net, stream);
            }
            Packet::Accept | Packet::Refuse | Packet::Block(_) | Packet::Reset => {
                unreachable!("viewers send none")
            }
        }
    }

    /// A packet has come to a viewer.
    fn down(&mut self, wire: WireId, packet: Packet) {
        let net = &mut self.net;
        let Wire { viewer, source, .. } = net.wires[wire];
        let viewer = &mut self.viewers[viewer];
        match packet {
            packet if viewer.knows(wire, source) => {
                viewer.take(wire, source, packet, net, &self.stream);
            }
            Packet::Close(..) | Packet::Refuse | Packet::Reset => {}
            // It has closed the connection, which the server does not know.
            _ => net.close(wire, Way::Up, CloseCode::Done, String::new()),
        }
    }

    /// Servers die at once, without a word.
    pub(crate) fn kill(&mut self, servers: &[usize]) {
        for server in servers {
            self.net.sites[*server].is_alive = false;
        }
        for wire in 0..self.net.wires.len() {
            if servers.contains(&self.net.wires[wire].server) {
                self.net.forget(wire, Way::Down);
            }
        }
    }

    /// A server starts again.
    pub(crate) fn revive(&mut self, server: usize) {
        self.net.sites[server].is_alive = true;
        self.servers[server] = Server::new((server, 2), &mut self.net, PLACES);
    }

    pub(crate) fn drain(&mut self, server: usize) {
        self.servers[server].drain(&mut self.net, &self.stream);
    }

    /// The halves of the network do not reach each other any more, or do again.
    pub(crate) fn divide(&mut self, is_divided: bool) {
        self.net.is_divided = is_divided;
    }

    /// The servers that are there for a viewer.
    pub(crate) fn reached(&self, viewer: usize) -> BTreeSet<usize> {
        let half = self.net.homes[viewer].half;
        let is_reached = |server: &usize| {
            let site = &self.net.sites[*server];
            site.is_alive && self.net.reaches(half, site.half)
        };
        (0..SERVERS).filter(is_reached).collect()
    }

    /// Whether a viewer knows a server that it reaches.
    pub(crate) fn knows_any(&self, viewer: usize) -> bool {
        let known = self.viewers[viewer].known(&self.net);
        !known.is_disjoint(&self.reached(viewer))
    }

    /// Viewers at each server that runs.
    pub(crate) fn loads(&self) -> Vec<u32> {
        let runs = |server: &&Server| server.is_open();
        let alive = (0..SERVERS).filter(|server| self.net.sites[*server].is_alive);
        alive
            .map(|server| &self.servers[server])
            .filter(runs)
            .map(Server::viewers)
            .collect()
    }
}
