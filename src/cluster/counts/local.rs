//! What this server uses of limits, whom it tells that, and which share it has.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ncs_serve::admission::rolls::{Share, Use};

use super::wire::{Flow, Told};
use crate::cluster::beat::Name;

/// The time after which a use is told again although it is the same.
pub(super) const REPEAT: Duration = Duration::from_secs(30);
/// How long a share counts after its owner has last told it. Another owner takes over before that.
pub(super) const SHARE_LASTS: Duration = Duration::from_secs(15);

/// The holders that use something here, or have a share.
#[derive(Debug, Default)]
pub(super) struct Local {
    holders: HashMap<u128, Known>,
    /// Holders to be told of at the next round.
    pending: HashSet<u128>,
    /// When holders were told of, the earliest first.
    repeats: VecDeque<(Instant, u128)>,
    /// Those whose bytes are shared with other servers.
    flowing: HashSet<u128>,
}

#[derive(Debug)]
struct Known {
    used: Use,
    /// The server that counts it.
    owner: Option<Name>,
    told_at: Option<Instant>,
    /// The share that it has here, and when that was told.
    share: Option<(Share, Instant)>,
    meter: Meter,
    /// Its bytes, as they were told.
    flow: Option<Flow>,
}

/// Measures bytes a second.
#[derive(Debug, Clone, Copy)]
struct Meter {
    at: Instant,
    spent: u64,
    rate: u64,
}

impl Meter {
    /// Half of the result is from the time since the last look.
    fn look(&mut self, now: Instant, spent: u64) {
        let time = now.saturating_duration_since(self.at);
        if time < LOOK_EVERY {
            return;
        }
        let bytes = u128::from(spent.saturating_sub(self.spent));
        let rate = bytes * 1000 / time.as_millis().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        *self = Self {
            at: now,
            spent,
            rate: self.rate / 2 + rate / 2,
        };
    }
}

impl Known {
    fn flow(&self) -> Option<Flow> {
        let rate = self.used.rate?;
        let share = self.share.and_then(|(share, _)| share.rate);
        let used = self.meter.rate;
        Some(Flow {
            rate,
            used,
            // Without a share nothing is known of what it would spend.
            is_hungry: share.is_none_or(|share| used >= share - share / 5),
        })
    }

    /// Whether its bytes are others than those told, by so much that it matters.
    fn flows_otherwise(&self) -> bool {
        match (self.flow, self.flow()) {
            (Some(told), Some(now)) => {
                let hardly = told.rate / 16;
                told.is_hungry != now.is_hungry
                    || told.rate != now.rate
                    || (!now.is_hungry && told.used.abs_diff(now.used) > hardly)
            }
            (told, now) => told != now,
        }
    }

    fn told(&self, now: Instant) -> Told {
        let age = |came: &Instant| {
            let age = now.saturating_duration_since(*came).as_millis();
            u32::try_from(age).unwrap_or(u32::MAX)
        };
        Told {
            holder: self.used.holder,
            connections: self.used.connections,
            limit: self.used.limit,
            flow: self.flow(),
            ages: self.used.marks.iter().map(age).collect(),
        }
    }
}

impl Local {
    /// Takes what a holder uses now.
    pub(super) fn note(&mut self, now: Instant, used: Use) {
        let holder = used.holder;
        let Some(known) = self.holders.get_mut(&holder) else {
            if used.connections > 0 {
                let meter = Meter {
                    at: now,
                    spent: used.spent,
                    rate: 0,
                };
                let known = Known {
                    used,
                    owner: None,
                    told_at: None,
                    share: None,
                    meter,
                    flow: None,
                };
                self.holders.insert(holder, known);
                self.pending.insert(holder);
            }
            return;
        };
        known.meter.look(now, used.spent);
        let is_other = |used: &Use| (used.connections, used.limit, used.rate, used.marks.clone());
        let has_changed = is_other(&known.used) != is_other(&used);
        known.used = used;
        if has_changed || known.flows_otherwise() {
            self.pending.insert(holder);
        }
    }

    /// Holders whose use has to be noted at each round.
    pub(super) fn flowing(&self) -> impl Iterator<Item = u128> {
        self.flowing.iter().copied()
    }

    /// Finds the owner of each holder anew. Returns those that another server counted before.
    pub(super) fn assign(&mut self, owner: impl Fn(u128) -> Option<Name>) -> Vec<(Name, Told)> {
        let mut left = Vec::new();
        for (holder, known) in &mut self.holders {
            let owner = owner(*holder);
            if known.owner != owner {
                if let Some(before) = std::mem::replace(&mut known.owner, owner) {
                    left.push((before, gone(*holder)));
                }
                self.pending.insert(*holder);
            }
        }
        left
    }

    /// Everything that these owners count is to be told at the next round.
    pub(super) fn retell(&mut self, to: impl Fn(&Name) -> bool) {
        for (holder, known) in &self.holders {
            if known.used.connections > 0 && known.owner.as_ref().is_some_and(&to) {
                self.pending.insert(*holder);
            }
        }
    }

    /// What there is to tell to each owner.
    pub(super) fn tell(
        &mut self,
        now: Instant,
        owner: impl Fn(u128) -> Option<Name>,
    ) -> BTreeMap<Name, Vec<Told>> {
        while let Some((told_at, holder)) = self.repeats.front().copied() {
            if told_at + REPEAT > now {
                break;
            }
            self.repeats.pop_front();
            let known = self.holders.get(&holder);
            if known.is_some_and(|known| known.told_at == Some(told_at)) {
                self.pending.insert(holder);
            }
        }
        let mut all: BTreeMap<Name, Vec<Told>> = BTreeMap::new();
        for holder in std::mem::take(&mut self.pending) {
            let Some(known) = self.holders.get_mut(&holder) else {
                continue;
            };
            if known.owner.is_none() {
                known.owner = owner(holder);
            }
            let told = known.told(now);
            known.told_at = Some(now);
            known.flow = told.flow;
            let is_gone = told.connections == 0;
            if let Some(owner) = &known.owner {
                all.entry(owner.clone()).or_default().push(told);
            }
            if !is_gone {
                self.repeats.push_back((now, holder));
            } else if known.share.is_none() {
                self.holders.remove(&holder);
            }
        }
        all
    }

    /// Takes a share from a server. Whether it counts: it is the owner that was told of the holder.
    pub(super) fn take(&mut self, now: Instant, from: &Name, holder: u128, share: Share) -> bool {
        let Some(known) = self.holders.get_mut(&holder) else {
            return false;
        };
        if known.owner.as_ref() != Some(from) {
            return false;
        }
        known.share = Some((share, now)).filter(|_| share != Share::default());
        match share.rate {
            Some(_) => self.flowing.insert(holder),
            None => self.flowing.remove(&holder),
        };
        self.forget(holder);
        true
    }

    /// Drops shares that nobody has told for too long. Returns their holders.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<u128> {
        let is_old = |known: &Known| {
            known
                .share
                .is_some_and(|(_, told_at)| told_at + SHARE_LASTS <= now)
        };
        let old = self.holders.iter().filter(|(_, known)| is_old(known));
        let old: Vec<u128> = old.map(|(holder, _)| *holder).collect();
        for holder in &old {
            if let Some(known) = self.holders.get_mut(holder) {
                known.share = None;
            }
            self.flowing.remove(holder);
            self.forget(*holder);
        }
        old
    }

    fn forget(&mut self, holder: u128) {
        let is_idle = |known: &Known| known.used.connections == 0 && known.share.is_none();
        if self.holders.get(&holder).is_some_and(is_idle) && !self.pending.contains(&holder) {
            self.holders.remove(&holder);
        }
    }

    /// Holders with connections here, or a share.
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }
}

/// A holder that uses nothing any more.
fn gone(holder: u128) -> Told {
    Told {
        holder,
        connections: 0,
        limit: None,
        flow: None,
        ages: Vec::new(),
    }
}

/// The least time between two looks at a meter.
const LOOK_EVERY: Duration = Duration::from_millis(250);
