//! The place in the program: what is played next, when it is asked for, and when it is late.

use std::time::{Duration, Instant};

use ncserverd::wire::message::{Get, Message, Meta, StopReason};

use super::{Doing, Viewer};
use crate::swarm::Program;
use crate::swarm::clock::{Item, Playout, Whims};

/// A playlist is read again so long after the last time.
const RELOAD: Duration = Duration::from_millis(1000);
/// A viewer of a live stream begins so many segments before its end.
const LIVE_BEHIND: usize = 3;

impl Viewer<'_> {
    /// Starts to play: a live stream where it is now, another anywhere, or at its beginning.
    pub(super) fn begin(&mut self, now: Instant, whims: &mut Whims) {
        let count = self.program.len();
        let position = match &self.shard.plan.program {
            Program::Live { .. } => count.saturating_sub(LIVE_BEHIND),
            Program::Fixed(_) if self.shard.plan.from_start && self.playout.is_none() => 0,
            Program::Fixed(_) => whims.choose(count),
        };
        let duration = self
            .item(position)
            .map_or(Duration::from_secs(1), |item| item.duration);
        self.playout = Some(Playout::new(now, position, duration));
        self.doing = Doing::Waiting;
        self.offset = self.item(position).map_or(0, |item| item.offset);
        self.is_listed = false;
        if matches!(self.shard.plan.program, Program::Live { .. }) {
            self.ask_list(now);
        }
    }

    fn item(&self, position: usize) -> Option<&Item> {
        match self.shard.plan.program {
            // From the beginning again.
            Program::Fixed(_) => self.program.get(position % self.program.len()),
            Program::Live { .. } => self.program.get(position),
        }
    }

    /// Asks what the next segment is.
    pub(super) fn ask(&mut self, now: Instant) {
        let Some(position) = self.playout.as_ref().map(|playout| playout.position) else {
            return;
        };
        let Some(path) = self.item(position).map(|item| item.path.clone()) else {
            // It is not listed yet.
            self.doing = Doing::Pausing {
                until: self.listed_at.map_or(now, |at| at + RELOAD),
                list: true,
            };
            return;
        };
        self.get(path, self.offset, false);
    }

    pub(super) fn ask_list(&mut self, now: Instant) {
        let Program::Live { path, .. } = &self.shard.plan.program else {
            return;
        };
        self.listed_at = Some(now);
        self.get(path.clone(), 0, true);
    }

    fn get(&mut self, path: String, offset: u64, list: bool) {
        self.next_request += 1;
        let request = self.next_request;
        Message::Get(Get {
            request,
            path,
            offset,
            length: None,
            held_only: false,
        })
        .encode(&mut self.out);
        self.doing = Doing::Asking { request, list };
    }

    /// A live playlist has come anew. Its front may have gone, so the place in it is found again by
    /// what is played next, or was last.
    pub(super) fn take_object(&mut self, now: Instant, request: u64, bytes: &[u8]) {
        if !matches!(self.doing, Doing::Asking { request: asked, list: true } if asked == request) {
            return;
        }
        self.doing = Doing::Pausing {
            until: now + RELOAD,
            list: true,
        };
        let Program::Live { path, .. } = &self.shard.plan.program else {
            return;
        };
        let Some((items, _)) = crate::swarm::items(path, bytes) else {
            return;
        };
        let Some(playout) = &mut self.playout else {
            return;
        };
        let place = |item: Option<&Item>| items.iter().position(|other| Some(other) == item);
        let next = place(self.program.get(playout.position));
        let last = playout
            .position
            .checked_sub(1)
            .and_then(|last| place(self.program.get(last)));
        let behind = items.len().saturating_sub(LIVE_BEHIND);
        playout.position = if self.is_listed {
            next.or_else(|| last.map(|last| last + 1)).unwrap_or(behind)
        } else {
            behind
        };
        self.program = items.into();
        self.is_listed = true;
        self.offset = self
            .program
            .get(playout.position)
            .map_or(0, |item| item.offset);
        self.doing = Doing::Waiting;
    }

    /// A part has come in full: on with the object, or with the next.
    pub(super) fn go_on(&mut self, now: Instant, meta: &Meta) {
        let Some(position) = self.playout.as_ref().map(|playout| playout.position) else {
            return;
        };
        let item = self.item(position).cloned();
        let covered = meta.offset.saturating_add(meta.length);
        let end = item
            .as_ref()
            .and_then(|item| item.end)
            .or(meta.object_length);
        if end.is_some_and(|end| covered < end) {
            self.offset = covered;
            self.ask(now);
            return;
        }
        let Some(playout) = &mut self.playout else {
            return;
        };
        let is_in_time = self.shard.totals.count(now, playout.due());
        let lasts = match (&item, self.shard.plan.bitrate) {
            (Some(item), Some(bitrate)) => Duration::from_secs_f64(
                (covered.saturating_sub(item.offset)) as f64 * 8.0 / bitrate,
            ),
            (Some(item), None) => item.duration,
            (None, _) => Duration::from_secs(1),
        };
        playout.advance(lasts);
        self.person.serve(now, &self.shard.totals);
        if is_in_time {
            let offset = item.as_ref().map_or(0, |item| item.offset);
            self.player.take(now, covered.saturating_sub(offset), lasts);
        }
        let position = playout.position;
        self.offset = self.item(position).map_or(0, |item| item.offset);
    }

    pub(super) fn patience(&self, now: Instant) -> Duration {
        self.playout
            .as_ref()
            .map_or(Duration::ZERO, |playout| playout.patience(now))
    }

    /// Requests what is missing again, after the server had it wait. A viewer of a live stream
    /// begins anew; another plays on where it was, with the same time to fill its buffer.
    pub(super) fn come_again(&mut self, now: Instant, whims: &mut Whims) {
        let Doing::Outside { mut fetch, .. } = std::mem::replace(&mut self.doing, Doing::Waiting)
        else {
            return;
        };
        self.person.ask(now, &self.shard.totals);
        let position = self.playout.as_ref().map(|playout| playout.position);
        let (Program::Fixed(_), Some(position)) = (&self.shard.plan.program, position) else {
            return self.begin(now, whims);
        };
        let duration = self
            .item(position)
            .map_or(Duration::from_secs(1), |item| item.duration);
        self.playout = Some(Playout::new(now, position, duration));
        self.next_alias = self.next_alias.wrapping_add(1);
        fetch.alias = self.next_alias;
        (fetch.asked_at, fetch.heard_at) = (now, now);
        let deadline = now + self.patience(now);
        fetch.request(deadline, now, self.shard.plan.accept, &mut self.out);
        self.doing = Doing::Fetching(fetch);
    }

    /// What is under way is not wanted any more. It counts as late if it is.
    pub(super) fn abandon(&mut self, now: Instant) {
        if let Some(playout) = &self.playout
            && !matches!(self.doing, Doing::Outside { .. })
            && playout.due() <= now
        {
            self.shard.totals.count(now, playout.due());
        }
        self.player.stop(now);
        if let Doing::Fetching(fetch) = std::mem::replace(&mut self.doing, Doing::Waiting) {
            Message::Stop {
                alias: fetch.alias,
                reason: StopReason::Cancelled,
            }
            .encode(&mut self.out);
        }
        self.doing = Doing::Waiting;
    }
}
