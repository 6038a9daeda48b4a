//! What an owner knows of its holders: their use at each server, and the shares that follow.
//!
//! Shares of connections: as long as all servers together stay within a limit, nothing is said. If
//! they exceed it for [`PATIENCE`], the oldest connections that fit stay. For [`STRICT_FOR`] after
//! that the holder is held to its limit: each server knows how many more it may have. A server
//! whose beat is late, or of which a message was lost, is not counted against others meanwhile: its
//! viewers may have gone to them.
//!
//! Shares of bytes: each server that a holder uses gets a little, and the rest goes to those that
//! would spend it, in equal parts at most. The shares sum up to the rate.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use ncs_serve::admission::rolls::Share;

use super::wire::{Flow, Told};
use crate::cluster::beat::Name;

/// How long a holder may exceed its limit. A viewer that changes servers is at both for a moment,
/// and a dead server is missed in this time.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// The same while it is held to its limit.
pub(super) const STRICT_PATIENCE: Duration = Duration::from_secs(1);
/// How long it is.
pub(super) const STRICT_FOR: Duration = Duration::from_secs(60);
/// The time after which a share is told again.
pub(super) const SHARE_REPEAT: Duration = Duration::from_secs(4);
/// A use that is not told again for so long is over.
pub(super) const USE_LASTS: Duration = Duration::from_secs(75);
/// Uses of one server, and of all, that are known at most. Others do not count.
pub(super) const SERVER_MAX: usize = 1 << 16;
pub(super) const USES_MAX: usize = 1 << 18;

/// The holders that this server counts.
#[derive(Debug, Default)]
pub(super) struct Books {
    accounts: HashMap<u128, Account>,
    /// The holders of each server.
    told: BTreeMap<Name, HashSet<u128>>,
    /// Accounts to look at in the next round.
    due: HashSet<u128>,
    uses: usize,
}

#[derive(Debug, Default)]
struct Account {
    parts: BTreeMap<Name, Part>,
    exceeded_since: Option<Instant>,
    strict_until: Option<Instant>,
}

/// A holder's use at one server.
#[derive(Debug)]
struct Part {
    connections: u32,
    came_at: Vec<Instant>,
    limit: Option<u32>,
    flow: Option<Flow>,
    told_at: Instant,
    /// The share that the server was told, and when.
    share: Share,
    shared_at: Option<Instant>,
}

impl Books {
    /// Takes what a server uses.
    pub(super) fn take(&mut self, now: Instant, from: &Name, told: Told) {
        let holder = told.holder;
        let known = self.told.get(from);
        let is_known = known.is_some_and(|told| told.contains(&holder));
        let has_room = || self.uses < USES_MAX && known.is_none_or(|told| told.len() < SERVER_MAX);
        if !is_known && (told.connections == 0 || !has_room()) {
            return;
        }
        let account = self.accounts.entry(holder).or_default();
        let before = account.parts.get(from);
        let (share, shared_at) = before.map_or_else(
            || (Share::default(), None),
            |part| (part.share, part.shared_at),
        );
        let came_at = |age: &u32| {
            let age = Duration::from_millis((*age).into());
            now.checked_sub(age).unwrap_or(now)
        };
        let part = Part {
            connections: told.connections,
            came_at: told.ages.iter().map(came_at).collect(),
            limit: told.limit,
            flow: told.flow,
            told_at: now,
            share,
            shared_at,
        };
        account.parts.insert(from.clone(), part);
        if !is_known {
            self.told.entry(from.clone()).or_default().insert(holder);
            self.uses += 1;
        }
        self.due.insert(holder);
    }

    /// Forgets what a server has told.
    pub(super) fn drop_server(&mut self, server: &Name) {
        for holder in self.told.remove(server).unwrap_or_default() {
            self.uses -= 1;
            self.due.insert(holder);
            if let Some(account) = self.accounts.get_mut(&holder) {
                account.parts.remove(server);
            }
        }
    }

    /// Looks at the holders of a server: whether it can be relied on has changed.
    pub(super) fn look_at(&mut self, server: &Name) {
        self.due.extend(self.told.get(server).into_iter().flatten());
    }

    /// Forgets uses that were not told for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        for (holder, account) in &mut self.accounts {
            for part in account.parts.values_mut() {
                if part.connections > 0 && part.told_at + USE_LASTS <= now {
                    part.connections = 0;
                    part.came_at.clear();
                    self.due.insert(*holder);
                }
            }
        }
    }

    /// Decides the shares of all holders that need a look. `counts` says whether a server can be
    /// relied on. Returns what servers have to be told.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        counts: impl Fn(&Name) -> bool,
    ) -> BTreeMap<Name, Vec<(u128, Share)>> {
        let mut all: BTreeMap<Name, Vec<(u128, Share)>> = BTreeMap::new();
        for holder in std::mem::take(&mut self.due) {
            let Some(account) = self.accounts.get_mut(&holder) else {
                continue;
            };
            for (server, share) in account.decide(now, &counts) {
                all.entry(server).or_default().push((holder, share));
            }
            let is_strict = account.strict_until.is_some();
            let told = &mut self.told;
            let uses = &mut self.uses;
            account.parts.retain(|server, part| {
                // A server that is held to a limit is told of its room when others leave.
                let stays = part.connections > 0 || is_strict;
                if !stays && let Some(holders) = told.get_mut(server) {
                    *uses -= usize::from(holders.remove(&holder));
                }
                stays
            });
            if account.parts.is_empty() {
                self.accounts.remove(&holder);
            } else if account.needs_a_look() {
                self.due.insert(holder);
            }
        }
        all
    }

    /// Holders that this server counts, and those of them that are at several servers.
    pub(super) fn len(&self) -> (usize, usize) {
        let shared = self.accounts.values().filter(|account| account.is_shared());
        (self.accounts.len(), shared.count())
    }

    /// Connections of a holder at all servers, as they were told.
    #[cfg(test)]
    pub(super) fn connections(&self, holder: u128) -> u32 {
        let parts = self.accounts.get(&holder).into_iter();
        let parts = parts.flat_map(|account| account.parts.values());
        parts.map(|part| part.connections).sum()
    }
}

impl Account {
    /// Whether it has to be looked at again without news.
    fn needs_a_look(&self) -> bool {
        let has_share = |part: &Part| part.share != Share::default();
        self.exceeded_since.is_some()
            || self.strict_until.is_some()
            || self.parts.values().any(has_share)
    }

    fn in_use(&self) -> impl Iterator<Item = (&Name, &Part)> {
        self.parts.iter().filter(|(_, part)| part.connections > 0)
    }

    fn is_shared(&self) -> bool {
        self.in_use().nth(1).is_some()
    }

    /// The shares that servers have to be told now.
    fn decide(&mut self, now: Instant, counts: &impl Fn(&Name) -> bool) -> Vec<(Name, Share)> {
        let keeps = self.keeps(now, counts);
        let rates = self.rates();
        let is_strict = self.strict_until.is_some();
        let mut told = Vec::new();
        for (server, part) in &mut self.parts {
            let keep = keeps.get(server).copied();
            // Of others, nothing reliable is known at present.
            let keep = keep.unwrap_or(part.share.keep);
            let share = Share {
                keep,
                is_strict: is_strict && keep.is_some(),
                rate: rates.get(server).copied(),
            };
            if part.tells(now, share) {
                (part.share, part.shared_at) = (share, Some(now));
                told.push((server.clone(), share));
            }
        }
        told
    }

    /// How many connections the servers that can be relied on may keep, where that is limited.
    fn keeps(
        &mut self,
        now: Instant,
        counts: &impl Fn(&Name) -> bool,
    ) -> BTreeMap<Name, Option<u32>> {
        self.strict_until = self.strict_until.filter(|until| *until > now);
        let is_strict = self.strict_until.is_some();
        let counted = self.parts.iter().filter(|(server, _)| counts(server));
        let counted: Vec<(Name, &Part)> = counted
            .map(|(server, part)| (server.clone(), part))
            .collect();
        // A server alone holds everybody to the limit itself.
        let limit = self.in_use().filter_map(|(_, part)| part.limit).max();
        let Some(limit) = limit.filter(|_| is_strict || self.is_shared()) else {
            let servers = counted
                .into_iter()
                .map(|(server, _)| (server, None))
                .collect();
            (self.exceeded_since, self.strict_until) = (None, None);
            return servers;
        };
        let connections = counted.iter().map(|(_, part)| u64::from(part.connections));
        if let Some(room) = u64::from(limit).checked_sub(connections.sum()) {
            let keep = |part: &Part| {
                let keep = u64::from(part.connections) + room;
                is_strict.then(|| u32::try_from(keep).unwrap_or(u32::MAX))
            };
            let servers = counted
                .into_iter()
                .map(|(server, part)| (server, keep(part)));
            let keeps = servers.collect();
            self.exceeded_since = None;
            return keeps;
        }
        let since = self.exceeded_since.unwrap_or(now);
        let patience = if is_strict { STRICT_PATIENCE } else { PATIENCE };
        let keeps = match now < since + patience {
            true => BTreeMap::new(),
            false => oldest(&counted, limit),
        };
        self.exceeded_since = Some(since);
        if !keeps.is_empty() {
            self.strict_until = Some(now + STRICT_FOR);
        }
        keeps
    }

    /// The rate of each server, if several servers share one.
    fn rates(&self) -> BTreeMap<Name, u64> {
        if !self.is_shared() {
            return BTreeMap::new();
        }
        let rate = self
            .in_use()
            .filter_map(|(_, part)| Some(part.flow?.rate))
            .max();
        let Some(rate) = rate else {
            return BTreeMap::new();
        };
        let wants = self.in_use().map(|(_, part)| match part.flow {
            Some(flow) if !flow.is_hungry => flow.used.saturating_add(flow.used / 4),
            Some(_) => u64::MAX,
            None => 0,
        });
        let wants: Vec<u64> = wants.collect();
        let servers = self.in_use().map(|(server, _)| server.clone());
        servers.zip(divide(rate, &wants)).collect()
    }
}

impl Part {
    /// Whether its server has to be told this share.
    fn tells(&self, now: Instant, share: Share) -> bool {
        let is_default = share == Share::default();
        let Some(shared_at) = self.shared_at else {
            return !is_default;
        };
        let of_connections = |share: &Share| (share.keep, share.is_strict);
        if of_connections(&share) != of_connections(&self.share) {
            return true;
        }
        let has_moved = match (share.rate, self.share.rate) {
            (Some(now), Some(before)) => now.abs_diff(before) > before / 32,
            (now, before) => now != before,
        };
        has_moved || (!is_default && shared_at + SHARE_REPEAT <= now)
    }
}

/// The connections that each server may keep so that the oldest of all stay.
fn oldest(parts: &[(Name, &Part)], limit: u32) -> BTreeMap<Name, Option<u32>> {
    let mut marks = Vec::new();
    for (position, (_, part)) in parts.iter().enumerate() {
        let (connections, count) = (u64::from(part.connections), part.came_at.len() as u64);
        for (mark, came_at) in (0..).zip(&part.came_at) {
            let stands_for = (mark + 1) * connections / count - mark * connections / count;
            marks.push((*came_at, position, stands_for));
        }
    }
    // The sort keeps the order of a server's own.
    marks.sort_by_key(|(came_at, position, _)| (*came_at, *position));
    let mut keeps = vec![0_u64; parts.len()];
    let mut left = u64::from(limit);
    for (_, position, stands_for) in marks {
        let kept = stands_for.min(left);
        keeps[position] += kept;
        left -= kept;
    }
    let keeps = keeps.into_iter().map(|keep| u32::try_from(keep).ok());
    let servers = parts.iter().map(|(server, _)| server.clone());
    servers.zip(keeps).collect()
}

/// Divides a rate among servers that want so much: each gets a little, nobody more than it wants
/// while others want more, and all together the whole.
fn divide(rate: u64, wants: &[u64]) -> Vec<u64> {
    let count = wants.len() as u64;
    let little = (rate / (LITTLE * count)).max(1);
    let mut left = rate.saturating_sub(little * count);
    let mut shares = vec![little; wants.len()];
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|position| wants[*position]);
    for (rank, position) in order.iter().enumerate() {
        let waiting = count - rank as u64;
        let part = wants[*position].saturating_sub(little).min(left / waiting);
        shares[*position] += part;
        left -= part;
    }
    shares.iter_mut().for_each(|share| *share += left / count);
    shares
}

/// Each server has at least this part of an equal share.
const LITTLE: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// One server that invents holders takes the room of no other, nor much memory.
    #[test]
    fn what_servers_use_is_bounded() {
        let (now, mut books) = (Instant::now(), Books::default());
        let mut take = |server: usize, holder: usize, connections| {
            let from = format!("media-{server}").parse().unwrap();
            let told = Told {
                holder: holder as u128,
                connections,
                limit: None,
                flow: None,
                ages: Vec::new(),
            };
            books.take(now, &from, told);
            books.uses
        };
        for holder in 0..SERVER_MAX + 10 {
            take(1, holder, 1);
        }
        assert_eq!(take(1, SERVER_MAX + 10, 1), SERVER_MAX);
        assert_eq!(take(2, 0, 1), SERVER_MAX + 1);
        for server in 3..10 {
            for holder in 0..SERVER_MAX {
                take(server, holder, 1);
            }
        }
        assert_eq!(take(2, 1, 1), USES_MAX);
        // What is known may change.
        assert_eq!(take(1, 0, 2), USES_MAX);
    }

    #[test]
    fn a_rate_is_divided_by_use() {
        const ALL: u64 = u64::MAX;
        assert_eq!(divide(1600, &[ALL, ALL]), [800, 800]);
        assert_eq!(divide(1600, &[ALL, 0]), [1500, 100]);
        assert_eq!(divide(1600, &[0, 400, ALL]), [66, 400, 1134]);
        assert_eq!(divide(1600, &[0, 0]), [800, 800]);
        for count in 1..20 {
            for rate in [1, 7, 1000, 123_456_789, u64::MAX] {
                let wants = (0..count).map(|number| (rate / 10).saturating_mul(number));
                let wants: Vec<u64> = wants.collect();
                let shares = divide(rate, &wants);
                let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
                let most = u128::from(rate.max(count));
                assert!(
                    sum <= most && sum + u128::from(count) * 2 >= most,
                    "{shares:?}"
                );
                assert!(shares.iter().all(|share| *share > 0));
            }
        }
    }

    #[test]
    fn the_oldest_stay() {
        let now = Instant::now();
        let part = |ages: &[u64], connections| Part {
            connections,
            came_at: ages
                .iter()
                .map(|age| now - Duration::from_secs(*age))
                .collect(),
            limit: None,
            flow: None,
            told_at: now,
            share: Share::default(),
            shared_at: None,
        };
        let parts = [part(&[9, 3], 2), part(&[8, 7, 2], 3)];
        let names: [Name; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let keeps = |limit| {
            let parts: Vec<_> = names.iter().cloned().zip(&parts).collect();
            let keeps = oldest(&parts, limit).into_values();
            keeps.map(Option::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(keeps(0), [0, 0]);
        assert_eq!(keeps(1), [1, 0]);
        assert_eq!(keeps(3), [1, 2]);
        assert_eq!(keeps(4), [2, 2]);
        assert_eq!(keeps(9), [2, 3]);
        let many = [part(&[9, 3], 101), part(&[5], 50)];
        let parts: Vec<_> = names.iter().cloned().zip(&many).collect();
        let keeps: Vec<_> = oldest(&parts, 110).into_values().collect();
        assert_eq!(keeps, [Some(60), Some(50)]);
    }
}
