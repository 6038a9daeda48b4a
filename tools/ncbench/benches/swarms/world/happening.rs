//! Events of nodes and their handling: for a viewer as in its client's driver, for a sender as in
//! sessions.

use std::time::Duration;

use bytes::Bytes;
use ncserverd::admission::Now;
use ncserverd::codec::gfq::Cores;
use ncserverd::directory::Asker;
use ncserverd::object::{RefusalCode, SegmentId};
use ncserverd::peer::neighbours::Advice;
use ncserverd::peer::proto::{Event as News, Order, Place, SourceId, Urgency};
use ncserverd::relay::TELL_EVERY;
use ncserverd::ring::SessionId;
use ncserverd::session::proto::INTRODUCE_EVERY;
use ncserverd::wire::message::{
    Hello, Holding as Held, HoldingState, Introduction, Meant, Message, Request, RequestError,
};
use rand::RngExt;

use super::{Role, SERVER, SPREAD, What, World};
use crate::sender::{Holding, Sending};
use crate::setup::Layout;
use crate::viewer::{Coming, Source};

/// How long it takes to find out that nobody is there to connect to.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl World {
    pub(super) fn happened(&mut self, what: What) {
        match what {
            What::Join(node) => self.join(node),
            What::Leave(node) => self.leave(node),
            What::Connected { node, source } => self.connected(node, source),
            What::Lost { node, source } => self.lost(node, source, false),
            What::Gone { node, asker } => {
                self.nodes[node].serving.forget(asker);
                self.nodes[node]
                    .clients
                    .retain(|(client, _)| *client != asker);
            }
            What::Publish(segment) => self.publish(segment),
            What::Announce { node, segment } => self.announced(node, segment),
            What::Begin => {
                for consumer in self
                    .nodes
                    .iter_mut()
                    .filter_map(|node| node.consumer.as_mut())
                {
                    consumer.before = consumer.proto.counts();
                    consumer.completed = 0;
                }
            }
            What::Up {
                from,
                source,
                to,
                message,
            } => self.asked(from, source, to, *message),
            What::Down {
                to,
                source,
                message,
            } => {
                let now = self.now;
                self.hear(to, source, |consumer| {
                    consumer.proto.handle_message(now, source, *message)
                });
            }
            What::Datagram { to, source, bytes } => self.datagram(to, source, bytes),
            What::Timer(node) => self.due(node),
            What::Send { node, to } => {
                match to {
                    Some(asker) => {
                        if let Some(open) = self.nodes[node].serving.askers.get_mut(&asker) {
                            open.is_scheduled = false;
                        }
                    }
                    None => self.nodes[node].serving.is_scheduled = false,
                }
                self.send(node, to);
            }
            What::Tell(node) => self.tell(node),
        }
    }

    fn join(&mut self, node: usize) {
        let parent = self.nodes[node].parent;
        self.connect(node, SourceId(0), parent);
        if self.is_named(node) {
            let (address, identity) = (self.nodes[node].address, self.nodes[node].identity);
            let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
            consumer.proto.offer(address.port(), identity);
        }
    }

    /// Whether others are told of it.
    fn is_named(&self, node: usize) -> bool {
        matches!(self.setup.layout, Layout::Swarm | Layout::Lans(_))
            && !matches!(self.nodes[node].role, Role::Server | Role::Relay)
    }

    fn connect(&mut self, node: usize, source: SourceId, to: usize) {
        let (now, round_trip) = (self.now, self.delay(node, to) * 2);
        if let Some(consumer) = self.nodes[node].consumer.as_mut() {
            consumer.sources.insert(
                source,
                Source {
                    node: to,
                    up_at: now,
                    down_at: now,
                },
            );
        }
        let takes = if self.nodes[to].is_gone {
            CONNECT_TIMEOUT
        } else {
            round_trip
        };
        self.post(now + takes, What::Connected { node, source });
    }

    fn connected(&mut self, node: usize, source: SourceId) {
        let Some(Source { node: to, .. }) = self.source(node, source).copied() else {
            return;
        };
        if self.nodes[to].is_gone {
            return self.lost(node, source, false);
        }
        let (now, identity, round_trip) =
            (self.now, self.nodes[to].identity, self.delay(node, to) * 2);
        self.nodes[to].clients.insert((node, source));
        let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
        consumer.neighbours.answered(source);
        consumer.proto.set_rtt(source, round_trip);
        consumer.proto.handle_connected(now, source, None);
        consumer.proto.identify(source, identity);
        self.settle(node);
    }

    /// A connection has ended, or none could be made.
    fn lost(&mut self, node: usize, source: SourceId, broke_the_rules: bool) {
        let Some(Source { node: to, .. }) = self.source(node, source).copied() else {
            return;
        };
        let now = self.now;
        let Some(consumer) = self.nodes[node].consumer.as_mut() else {
            return;
        };
        consumer.proto.handle_disconnected(now, source, true);
        self.post(
            now + self.delay(node, to),
            What::Gone {
                node: to,
                asker: node,
            },
        );
        let consumer = self.nodes[node].consumer.as_mut().expect("as before");
        if consumer.neighbours.failed(source, broke_the_rules) {
            self.dismiss(node, source);
        } else {
            self.connect(node, source, to);
        }
        self.settle(node);
    }

    /// A neighbour is none any more.
    fn dismiss(&mut self, node: usize, source: SourceId) {
        let now = self.now;
        let Some(consumer) = self.nodes[node].consumer.as_mut() else {
            return;
        };
        consumer.proto.handle_disconnected(now, source, true);
        consumer.proto.remove_source(source);
        if let Some(Source { node: to, .. }) = consumer.sources.remove(&source) {
            self.post(
                now + self.delay(node, to),
                What::Gone {
                    node: to,
                    asker: node,
                },
            );
        }
    }

    /// A viewer closes its connections, and another one comes.
    fn leave(&mut self, node: usize) {
        let parent = self.nodes[node].parent;
        self.directory.withdraw(SessionId(node as u64));
        self.nodes[node].is_gone = true;
        let before = self.nodes[node].consumer.take();
        for source in before.iter().flat_map(|consumer| consumer.sources.values()) {
            self.post(
                self.now + self.delay(node, source.node),
                What::Gone {
                    node: source.node,
                    asker: node,
                },
            );
        }
        for (client, source) in std::mem::take(&mut self.nodes[node].clients) {
            self.post(
                self.now + self.delay(node, client),
                What::Lost {
                    node: client,
                    source,
                },
            );
        }
        if let Some(consumer) = before {
            // What it will not have is not late.
            let counted = consumer
                .fetches
                .values()
                .filter(|coming| self.counts(Some(coming.segment)))
                .count();
            if self.nodes[node].role == Role::Viewer {
                self.ledger.wanted -= counted as u64;
            }
            self.ledger
                .left
                .push((consumer.proto.counts(), consumer.before, consumer.completed));
        }
        self.nodes[node].serving = crate::sender::Serving::default();
        self.add_viewer(parent, self.now);
    }

    fn publish(&mut self, segment: usize) {
        let bytes = crate::viewer::encoded(&self.stream[segment].meta()) + crate::setup::OVERHEAD;
        for node in 0..self.nodes.len() {
            if matches!(self.nodes[node].role, Role::Server | Role::Relay)
                || self.nodes[node].is_gone
            {
                continue;
            }
            self.ledger.control(self.counts(Some(segment)), bytes);
            let heard = Duration::from_secs_f64(self.rng.random_range(0.0..SPREAD));
            let at = self.now + self.message_delay(SERVER, node) + heard;
            self.post(at, What::Announce { node, segment });
        }
    }

    fn announced(&mut self, node: usize, segment: usize) {
        if self.nodes[node].consumer.is_some() {
            if self.counts(Some(segment)) && self.nodes[node].role == Role::Viewer {
                self.ledger.wanted += 1;
            }
            self.begin(node, segment, Urgency::Ahead);
        }
    }

    /// A consumer fetches a segment.
    fn begin(&mut self, node: usize, segment: usize, urgency: Urgency) {
        let now = self.now;
        let what = &self.stream[segment];
        let Some(consumer) = self.nodes[node].consumer.as_mut() else {
            return;
        };
        if consumer.holdings.contains_key(&segment) {
            return;
        }
        consumer.holdings.insert(segment, Holding::new(what));
        let order = Order {
            segment: what.id,
            shape: what.shape,
            proof: None,
            deadline: None,
            urgency,
        };
        let place = Place {
            path: what.path.clone(),
            offset: 0,
            length: None,
        };
        let fetch = consumer.proto.fetch(now, order, Some(place));
        consumer.fetches.insert(
            fetch,
            Coming {
                segment,
                left: what.shape.generations(),
                is_right: true,
            },
        );
        self.settle(node);
    }

    fn hear<E: std::fmt::Debug>(
        &mut self,
        node: usize,
        source: SourceId,
        what: impl FnOnce(&mut crate::viewer::Consumer) -> Result<(), E>,
    ) {
        let Some(consumer) = self.nodes[node].consumer.as_mut() else {
            return;
        };
        if !consumer.sources.contains_key(&source) {
            return;
        }
        if what(consumer).is_err() {
            return self.lost(node, source, true);
        }
        self.settle(node);
    }

    fn datagram(&mut self, node: usize, source: SourceId, bytes: Bytes) {
        let now = self.now;
        self.hear(node, source, |consumer| {
            consumer.proto.handle_datagram(now, source, bytes)
        });
    }

    fn due(&mut self, node: usize) {
        let now = self.now;
        let Some(consumer) = self.nodes[node].consumer.as_mut() else {
            return;
        };
        if consumer.timer.is_none_or(|at| at > now) {
            return;
        }
        consumer.timer = None;
        if let Err((source, _)) = consumer.proto.handle_timeout(now) {
            return self.lost(node, source, true);
        }
        self.settle(node);
    }

    /// A consumer says and does what it wants to, and passes on what has come.
    fn settle(&mut self, node: usize) {
        let now = self.now;
        let Some(mut consumer) = self.nodes[node].consumer.take() else {
            return;
        };
        let (mut said, mut news) = (Vec::new(), Vec::new());
        loop {
            for source in consumer.sources.keys().copied().collect::<Vec<_>>() {
                while let Some(message) = consumer.proto.poll_message(now, source) {
                    said.push((source, message));
                }
                while consumer.proto.poll_stop(source).is_some() {}
            }
            let Some(event) = consumer.proto.poll_event() else {
                break;
            };
            news.push(event);
        }
        let due = consumer.proto.poll_timeout();
        if let Some(due) = due.filter(|due| consumer.timer.is_none_or(|at| *due < at || at <= now))
        {
            consumer.timer = Some(due.max(now));
            self.post(due.max(now), What::Timer(node));
        }
        self.nodes[node].consumer = Some(consumer);
        for (source, message) in said {
            let Some(Source { node: to, .. }) = self.source(node, source).copied() else {
                continue;
            };
            let at = now + self.message_delay(node, to);
            let place = self.source(node, source).expect("as before");
            place.up_at = place.up_at.max(at);
            let at = place.up_at;
            self.post(
                at,
                What::Up {
                    from: node,
                    source,
                    to,
                    message: Box::new(message),
                },
            );
        }
        if !news.is_empty() {
            let has_more = news
                .into_iter()
                .fold(false, |has_more, event| self.take(node, event) | has_more);
            if has_more {
                self.send(node, None);
            }
            // What was taken may have brought about something more to say.
            self.settle(node);
        }
    }

    /// True if there is more to pass on.
    fn take(&mut self, node: usize, event: News) -> bool {
        let now = self.now;
        match event {
            News::Brought {
                cut,
                generation,
                source,
                block,
                is_checked,
            } => self.keep(node, cut.segment, |segment, holding| {
                holding.brought(segment, generation, source, block, is_checked)
            }),
            News::Checked {
                cut,
                generation,
                rows,
            } => self.keep(node, cut.segment, |segment, holding| {
                holding.checked(segment, generation, rows)
            }),
            // Nothing here is coded over the prime field.
            News::Hashed { .. } | News::Test(_) => false,
            // Nobody here is a web page.
            News::Page { .. } | News::Pages { .. } | News::Signal { .. } => false,
            News::Decoded { fetch, decoder } => {
                let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
                consumer.weigh_neighbours(now);
                let Some(coming) = consumer.fetches.get_mut(&fetch) else {
                    return false;
                };
                let (segment, generation) = (coming.segment, *decoder.generation());
                coming.is_right &= decoder
                    .into_bytes(&Cores::all())
                    .is_ok_and(|bytes| self.stream[segment].is(&generation, &bytes));
                coming.left -= 1;
                if coming.left > 0 {
                    return false;
                }
                let is_right = coming.is_right;
                if consumer.proto.confirm(now, fetch, is_right) {
                    coming.left = self.stream[segment].shape.generations();
                    coming.is_right = true;
                    return false;
                }
                consumer.fetches.remove(&fetch);
                if is_right {
                    self.complete(node, segment)
                } else {
                    false
                }
            }
            News::Failed { fetch, .. } => {
                let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
                consumer.fetches.remove(&fetch);
                false
            }
            News::Peers { segment, peers } => {
                peers
                    .into_iter()
                    .for_each(|peer| self.named(node, segment, &peer));
                false
            }
            News::Polluter(source) => {
                let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
                if let Some(identity) = consumer.proto.identity(source) {
                    consumer.neighbours.ban(identity);
                }
                self.ledger.polluters += 1;
                self.lost(node, source, true);
                false
            }
            News::Ready(_)
            | News::Answered { .. }
            | News::Announced { .. }
            | News::Unsubscribed { .. }
            | News::TokenRefused(_)
            | News::Alternates { .. }
            | News::GoingAway(_) => false,
        }
    }

    /// True if others may have it.
    fn keep(
        &mut self,
        node: usize,
        segment: SegmentId,
        put: impl FnOnce(&crate::stream::Segment, &mut Holding),
    ) -> bool {
        let index = self.index[&segment];
        let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
        let Some(holding) = consumer
            .holdings
            .get_mut(&index)
            .filter(|holding| !holding.is_whole)
        else {
            return false;
        };
        put(&self.stream[index], holding);
        if !std::mem::replace(&mut holding.is_told, true) {
            consumer.note(index, HoldingState::Partial);
            self.tell_soon(node);
        }
        true
    }

    fn complete(&mut self, node: usize, segment: usize) -> bool {
        let counts = self.counts(Some(segment));
        let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
        consumer.completed += u64::from(counts);
        if let Some(holding) = consumer.holdings.get_mut(&segment) {
            holding.complete();
        }
        consumer.note(segment, HoldingState::Complete);
        self.tell_soon(node);
        if counts && self.nodes[node].role == Role::Viewer {
            let delay = self
                .now
                .saturating_duration_since(self.published_at(segment));
            self.ledger.delays.push(delay);
        }
        true
    }

    fn tell_soon(&mut self, node: usize) {
        if !self.is_named(node) {
            return;
        }
        let passed = self
            .now
            .saturating_duration_since(self.nodes[node].joined_at);
        let rest = Duration::from_nanos(
            (passed.as_nanos() % TELL_EVERY.as_nanos())
                .try_into()
                .expect("less than a second"),
        );
        let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
        if !std::mem::replace(&mut consumer.is_telling, true) {
            self.post(self.now + (TELL_EVERY - rest), What::Tell(node));
        }
    }

    fn tell(&mut self, node: usize) {
        let Some(consumer) = self.nodes[node].consumer.as_mut() else {
            return;
        };
        consumer.is_telling = false;
        let untold = std::mem::take(&mut consumer.untold);
        let held = |(segment, state): (usize, HoldingState)| {
            let what = &self.stream[segment];
            Held {
                segment: what.id,
                meant: Meant::Coded(what.shape.coding()),
                state,
            }
        };
        let changed: Vec<Held> = untold.into_iter().map(held).collect();
        consumer.proto.tell_holdings(&changed);
        self.settle(node);
    }

    /// The server has named a peer.
    fn named(&mut self, node: usize, segment: SegmentId, peer: &Introduction) {
        let now = self.now;
        let consumer = self.nodes[node].consumer.as_mut().expect("it asks");
        consumer.weigh_neighbours(now);
        let (source, left) = match consumer.neighbours.named(now, peer) {
            Advice::Known(source) => return consumer.proto.note_holding(source, segment),
            Advice::Take(source) => (source, None),
            Advice::Exchange(source, left) => (source, Some(left)),
            Advice::Forbidden | Advice::Leave => return,
        };
        consumer.proto.add_neighbour(source);
        consumer.proto.note_holding(source, segment);
        if let Some(left) = left {
            self.dismiss(node, left);
        }
        let number = u64::from_be_bytes(peer.identity[..8].try_into().expect("eight bytes"));
        self.connect(node, source, usize::try_from(number).expect("its place"));
    }

    /// A sender is asked something by a consumer, to which it is `source`.
    fn asked(&mut self, from: usize, source: SourceId, to: usize, message: Message) {
        if self.nodes[to].is_gone || self.nodes[from].is_gone {
            return;
        }
        match message {
            Message::Hello(_) => {
                self.say(to, from, source, Message::Hello(Hello::defaults()), None)
            }
            Message::Request(request) => self.requested(from, source, to, &request),
            Message::Credit { alias, blocks } => {
                if let Some(sending) = self.nodes[to].serving.find(from, alias) {
                    sending.credit += blocks;
                    self.send(to, (to == SERVER).then_some(from));
                }
            }
            Message::Rank { alias, lost, .. } => {
                if let Some(sending) = self.nodes[to].serving.find(from, alias) {
                    sending.note_lost(lost);
                    self.send(to, (to == SERVER).then_some(from));
                }
            }
            Message::Stop { alias, .. } => self.nodes[to].serving.stop(from, alias),
            Message::GetChecks(asked) if to == SERVER => {
                let segment = self.index[&asked.segment];
                let answer = self.stream[segment].checks(&asked, &mut self.rng);
                self.say(to, from, source, answer, Some(segment));
            }
            Message::GetChecks(asked) => {
                let (request, code, reason) = (
                    asked.request,
                    RefusalCode::Unknown,
                    "relays do not serve checksums".to_owned(),
                );
                self.say(
                    to,
                    from,
                    source,
                    Message::Error(RequestError {
                        request,
                        code,
                        retry_after_ms: 0,
                        reason,
                    }),
                    None,
                );
            }
            Message::Offer { identity, .. } if to == SERVER => {
                self.directory
                    .offer(SessionId(from as u64), self.nodes[from].address, identity);
            }
            Message::Have(changed) if to == SERVER => {
                self.directory.have(SessionId(from as u64), &changed)
            }
            Message::Blame { identity, .. } if to == SERVER => {
                self.directory
                    .blame(self.now, self.nodes[from].address.ip(), None, identity);
            }
            _ => {}
        }
    }

    fn requested(&mut self, from: usize, source: SourceId, to: usize, request: &Request) {
        let segment = self.index[&request.segment];
        let role = self.nodes[to].role;
        if role == Role::Relay {
            self.begin(to, segment, Urgency::Now);
        }
        if role == Role::Mute {
            return;
        }
        let holding = self.nodes[to]
            .consumer
            .as_ref()
            .map(|consumer| consumer.holdings.get(&segment));
        if let Some(None) = holding {
            let reject = Message::Reject {
                alias: request.alias,
                code: RefusalCode::Unknown,
                retry_after_ms: 0,
            };
            return self.say(to, from, source, reject, Some(segment));
        }
        // A server sends coded blocks from the beginning, a complete relay source blocks.
        let has_sources = holding.flatten().is_some_and(|holding| holding.is_whole);
        let sending = Sending::new(
            self.now,
            source,
            (segment, &self.stream[segment]),
            request,
            has_sources,
            &mut self.rng,
        );
        self.nodes[to].serving.add(from, sending);
        if to == SERVER {
            self.introduce(from, segment);
        }
        self.send(to, (to == SERVER).then_some(from));
    }

    /// The server tells an asker who else has a segment, as sessions do.
    fn introduce(&mut self, asker: usize, segment: usize) {
        let last = self.introduced.get(&(asker, segment));
        if last.is_some_and(|at| self.now.saturating_duration_since(*at) < INTRODUCE_EVERY) {
            return;
        }
        self.introduced.insert((asker, segment), self.now);
        let who = Asker {
            session: SessionId(asker as u64),
            address: self.nodes[asker].address.ip(),
        };
        let date =
            Duration::from_secs(1_800_000_000) + self.now.saturating_duration_since(self.start);
        let now = Now {
            instant: self.now,
            date,
        };
        let (id, coding) = (self.stream[segment].id, self.stream[segment].shape.coding());
        let peers = self.directory.introduce(now, who, "live", (id, coding));
        if !peers.is_empty() {
            self.say(
                SERVER,
                asker,
                SourceId(0),
                Message::Peers { segment: id, peers },
                Some(segment),
            );
        }
    }
}
