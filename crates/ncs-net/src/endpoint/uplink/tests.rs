//! The estimate, fed by a simulated line in virtual time, and the order of turns.

use super::*;

const PACKET: u64 = 1200;
const TICK: Duration = Duration::from_millis(1);
const MEMBERS: usize = 8;
/// Between the line and the peer, there and back.
const PATH: Duration = Duration::from_millis(20);

/// A line with a queue, and connections that always have something to send over it.
struct World {
    uplink: Uplink,
    members: Vec<Member>,
    now: Instant,
    /// Bytes a second.
    line: f64,
    /// When the queue will be empty.
    free_at: Instant,
    /// When the rate allows the next packet.
    next_at: Instant,
    under_way: Vec<(Instant, Instant, usize)>,
    sent: u64,
}

impl World {
    fn new(line: f64) -> Self {
        let (uplink, now) = (Uplink::new(), Instant::now());
        let members = (0..MEMBERS).map(|_| uplink.member()).collect();
        let mut world = Self {
            uplink,
            members,
            now,
            line,
            free_at: now,
            next_at: now,
            under_way: Vec::new(),
            sent: 0,
        };
        // Each connection knows the path without a queue.
        for member in &mut world.members {
            member.acked(now, now - PATH, 100);
        }
        world.now += 2 * SPAN_MAX;
        world
    }

    fn rate(&self) -> Option<f64> {
        self.uplink.0.estimate().rate
    }

    fn queue(&self) -> Duration {
        self.free_at.saturating_duration_since(self.now)
    }

    /// Sends as the rate allows; without one, while at most three packets of each connection are
    /// under way. Returns the mean queue, and the part of the line that was used.
    fn run(&mut self, time: Duration) -> (Duration, f64) {
        let (until, before, mut queues, mut ticks) =
            (self.now + time, self.sent, Duration::ZERO, 0);
        while self.now < until {
            self.now += TICK;
            while self.may_send() {
                let member = usize::try_from(self.sent / PACKET).unwrap() % MEMBERS;
                let takes = Duration::from_secs_f64(PACKET as f64 / self.line);
                self.free_at = self.free_at.max(self.now) + takes;
                self.under_way.push((self.free_at + PATH, self.now, member));
                self.sent += PACKET;
            }
            let now = self.now;
            let come = self.under_way.iter().filter(|(at, ..)| *at <= now);
            for (_, sent, member) in come.copied().collect::<Vec<_>>() {
                self.members[member].acked(now, sent, PACKET);
            }
            self.under_way.retain(|(at, ..)| *at > now);
            (queues, ticks) = (queues + self.queue(), ticks + 1);
        }
        let used = (self.sent - before) as f64 / (self.line * time.as_secs_f64());
        (queues / ticks, used)
    }

    fn may_send(&mut self) -> bool {
        let Some(rate) = self.rate() else {
            return self.under_way.len() < 3 * MEMBERS;
        };
        let is_due = self.next_at <= self.now;
        if is_due {
            let mut estimate = self.uplink.0.estimate();
            (estimate.turns, estimate.waited) = (estimate.turns + 1, estimate.waited + 1);
            self.next_at = self.next_at.max(self.now - TICK)
                + Duration::from_secs_f64(PACKET as f64 / rate)
                + std::mem::take(&mut estimate.pause);
        }
        is_due
    }
}

#[test]
fn a_slow_line_is_used_and_its_queue_stays_short() {
    let mut world = World::new(120e3);
    let (queue, _) = world.run(Duration::from_millis(300));
    assert!(
        queue > Duration::from_millis(100),
        "three packets each: {queue:?}"
    );
    world.run(Duration::from_secs(5));
    // Longer than the shortest round trip is remembered: the queue does not become a part of it.
    for minute in 0..3 {
        let (queue, used) = world.run(Duration::from_secs(60));
        assert!(queue < TARGET * 3 / 2, "{minute}: {queue:?}");
        assert!(used > 0.9, "{minute}: {used}");
    }
}

#[test]
fn the_rate_follows_the_line() {
    let mut world = World::new(120e3);
    world.run(Duration::from_secs(5));
    world.line = 60e3;
    world.run(Duration::from_secs(5));
    let (queue, used) = world.run(Duration::from_secs(10));
    assert!(queue < TARGET * 3 / 2 && used > 0.9, "{queue:?} {used}");
    world.line = 480e3;
    world.run(Duration::from_secs(5));
    let (queue, used) = world.run(Duration::from_secs(10));
    assert!(queue < TARGET * 3 / 2 && used > 0.9, "{queue:?} {used}");
}

#[test]
fn nothing_is_limited_where_no_queue_is_seen() {
    let mut world = World::new(10e6);
    world.run(Duration::from_secs(5));
    assert_eq!(world.uplink.portion(), None);
}

/// Of these connections, `slow` see a queue of their own.
fn beside_slow_peers(slow: u64) -> Option<u64> {
    let mut world = World::new(10e6);
    for round in 0..200_u64 {
        world.now += 10 * TICK;
        for (number, member) in (0..).zip(&mut world.members) {
            // Their lines are empty now and then.
            let is_slow = number < slow && round % 50 != 0;
            let queue = if is_slow { 4 * TARGET } else { Duration::ZERO };
            member.acked(world.now, world.now - PATH - queue, PACKET);
        }
    }
    world.uplink.portion()
}

#[test]
fn peers_with_slow_lines_do_not_limit_the_others_while_they_are_few() {
    assert_eq!(beside_slow_peers(3), None);
    assert!(beside_slow_peers(6).is_some());
}

#[test]
fn a_line_that_is_hardly_used_is_not_taken_for_a_slow_one() {
    let mut world = World::new(120e3);
    world.run(Duration::from_secs(5));
    let before = world.rate().unwrap();
    // A packet every 50 ms, late for other reasons, and one turn in ten has to wait.
    for turn in 0..400_usize {
        world.now += 50 * TICK;
        let sent = world.now - PATH - TARGET * 9 / 10;
        world.members[turn % 8].acked(world.now, sent, PACKET);
        let mut estimate = world.uplink.0.estimate();
        estimate.turns += 1;
        estimate.waited += u32::from(turn % 10 == 0);
    }
    let after = world.rate().unwrap();
    assert!(after > before * 0.9, "{before} {after}");
}

#[test]
fn a_rate_remains_whatever_others_send() {
    let mut world = World::new(120e3);
    world.run(Duration::from_secs(5));
    // Somebody else fills the queue.
    for _ in 0..5000 {
        let sent = world.now - PATH - 10 * TARGET;
        world.members[0].acked(world.now, sent, 1);
        let mut estimate = world.uplink.0.estimate();
        (estimate.turns, estimate.waited) = (1, 1);
        drop(estimate);
        world.now += 2 * TICK;
    }
    assert_eq!(world.rate(), Some(RATE_MIN));
}

#[tokio::test]
async fn turns_follow_each_other_in_the_order_of_the_questions() {
    let uplink = Uplink::new();
    uplink.free(u64::MAX).await;
    uplink.0.estimate().rate = Some(100e3);
    let begun = Instant::now();
    let order = Mutex::new(Vec::new());
    let turn = |number: u32| {
        let (uplink, order) = (&uplink, &order);
        async move {
            uplink.free(4000).await;
            order.lock().unwrap().push((number, begun.elapsed()));
        }
    };
    // The one in the middle does not wait for its turn.
    let given_up = async {
        let soon = Duration::from_millis(5);
        assert!(tokio::time::timeout(soon, turn(2)).await.is_err());
    };
    tokio::join!(turn(0), turn(1), given_up, turn(3));
    let order = order.into_inner().unwrap();
    let numbers: Vec<u32> = order.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 3]);
    // 40 ms each, less what a turn begins early.
    assert!(order[1].1 >= 40 * TICK - EARLY, "{order:?}");
    assert!(order[2].1 >= 80 * TICK - EARLY, "{order:?}");
}
