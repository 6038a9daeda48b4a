//! Servers that other servers have named, from the word that names them until they are left.

use std::time::Instant;

use ncs_proto::wire::message::Alternate;
use quinn::Connection;

use super::link::{End, Link, Shown};
use super::{Driver, link_to};
use crate::Server;
use crate::neighbours::is_private;
use crate::proto::SourceId;
use crate::proto::alternates::{Health, Reach, Step};
use crate::token::Current;

impl Driver {
    /// Looks how the servers are, and turns to others where that is needed.
    pub(super) fn find_servers(&mut self, now: Instant, links: &mut Vec<Link>) {
        let is_quiet = !self.alternates.are_known() && !self.alternates.are_used();
        if is_quiet && self.hushed.is_empty() {
            return;
        }
        let mut health = Vec::new();
        for link in links.iter_mut() {
            let source = link.id;
            if self.neighbours.is_one(source) {
                continue;
            }
            let is_mute = self.is_mute(now, link);
            if is_mute && self.alternates.has_left(source) {
                // Others are asked for what it still owes.
                self.end(link, End::Left);
            }
            if !self.alternates.rests(source) {
                health.push((source, self.health(link, is_mute)));
            }
        }
        let is_connected = |source: SourceId| {
            let link = links.iter().find(|link| link.id == source);
            link.is_some_and(|link| link.connection().is_some())
        };
        self.proto.hush(&mut self.hushed, &health, is_connected);
        for step in self.alternates.look(now, &health) {
            self.carry_out(now, links, step);
        }
    }

    /// Whether a server owes something and says nothing.
    fn is_mute(&self, now: Instant, link: &mut Link) -> bool {
        // One that is not known yet owes HELLO.
        let is_known = self.proto.server(link.id).is_some() || self.proto.is_leaving(link.id);
        let owes = !is_known || self.proto.owes(link.id);
        link.is_mute(now, owes)
    }

    fn health(&self, link: &Link, is_mute: bool) -> Health {
        let reach = match link.connection() {
            Some(_) => Reach::Connected { is_mute },
            None if link.is_down() || !self.alternates.is_one(link.id) => Reach::Down,
            None => Reach::Coming,
        };
        self.proto.health(link.id, reach)
    }

    /// A server has named others, and may want the client to go to one of them.
    pub(super) fn told(&mut self, by: SourceId, moves: bool, servers: Vec<Alternate>) {
        if self.config.follows {
            self.alternates.told(Instant::now(), by, moves, servers);
        }
    }

    fn carry_out(&mut self, now: Instant, links: &mut Vec<Link>, step: Step) {
        match step {
            Step::Open { source, server, by } => self.open(links, source, server, by),
            Step::Forget(source) => self.dismissed.push(source),
            Step::Leave(source) => {
                let Some(link) = find(links, source) else {
                    return;
                };
                tracing::info!(server = %link.server, "another server serves in its place");
                self.proto.leave_source(source);
                match link.connection().is_some() {
                    true if self.proto.is_leaving(source) && !self.proto.is_quiet_at(source) => {}
                    // It owes nothing; perhaps it takes no requests yet.
                    true => self.end(link, End::Left),
                    false => link.give_up(),
                }
            }
            Step::Rest(source) => {
                let Some(link) = find(links, source) else {
                    return;
                };
                tracing::info!(
                    server = %link.server,
                    "another server serves: no longer trying to connect",
                );
                link.give_up();
            }
            Step::Resume(source) => {
                let Some(link) = find(links, source) else {
                    return;
                };
                tracing::info!(server = %link.server, "trying to connect again");
                link.resume(now);
            }
        }
    }

    /// Connects to a server that `by` has named, and shows it what `by` was shown.
    fn open(&mut self, links: &mut Vec<Link>, source: SourceId, server: Alternate, by: SourceId) {
        // It is `host:port`, so it is a server.
        let Ok(server) = Server::try_from(&server) else {
            return self.dismissed.push(source);
        };
        let near = links.iter().find(|link| link.id == by);
        // A server on the internet names no hosts of the viewer's own network.
        let is_private = near.and_then(|link| link.address).is_some_and(is_private);
        let takes_private = is_private || self.config.private_neighbours;
        let rtt = near.and_then(Link::connection).map(Connection::rtt);
        let gets_token = self.entrusted.contains(&by);
        let token = self.config.token.clone().filter(|_| gets_token);
        let shown = Shown::Token(Current::new(token));
        match link_to(source, server, shown, &self.config) {
            Ok(mut link) => {
                tracing::info!(server = %link.server, "trying a server that another one has named");
                link.note_sent(rtt, takes_private);
                if gets_token {
                    self.entrusted.insert(source);
                }
                if let Some(waiting) = &mut self.ready {
                    waiting.left.insert(source);
                }
                links.push(link);
            }
            Err(error) => {
                tracing::debug!(error, "no way to connect to a server that was named");
                self.dismissed.push(source);
            }
        }
    }

    /// When to look at the servers again.
    pub(super) fn servers_due(&self, links: &[Link]) -> Option<Instant> {
        let listens = links.iter().filter_map(Link::listens_at);
        let listens = listens.filter(|_| self.alternates.are_known());
        listens.chain(self.alternates.due()).min()
    }
}

fn find(links: &mut [Link], source: SourceId) -> Option<&mut Link> {
    links.iter_mut().find(|link| link.id == source)
}
