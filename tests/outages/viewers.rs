//! Viewers of a live stream, many in one process: each is a client with sockets of its own, and
//! those of one host share a runtime whose threads are in the host's namespace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncserverd::peer::{self, Client, TokenSource};
use ncserverd::tls::Trust;
use nctest::live::{self, Feeder, PLAYLIST};
use nctest::mint;
use tokio::runtime::Runtime;

use crate::moves::{Change, Loss};
use crate::net::{Half, Host};

/// How long after its publication a segment is shown: three segments, as players of HLS hold.
pub(crate) const HOLDS: Duration = Duration::from_secs(6);
/// How often a viewer asks for the playlist.
const ASKS: Duration = Duration::from_secs(1);
/// After an error a player tries again.
const RETRY: Duration = Duration::from_millis(200);
/// Segments in the playlist.
const WINDOW: u64 = 10;
/// Longer than all scenarios take.
const TOKEN_SECONDS: i64 = 4 * 3600;

/// A live stream, which begins when this is made.
pub(crate) struct Stream {
    feeder: Feeder,
    length: usize,
    right: Mutex<BTreeMap<u64, Arc<[u8]>>>,
}

impl Stream {
    /// In the folder `media` of this one.
    pub(crate) fn start(folder: &Path, bitrate: u64) -> (Arc<Self>, PathBuf) {
        let (feeder, media) = Feeder::start(folder, bitrate, WINDOW);
        let stream = Self {
            feeder,
            length: live::segment_bytes(bitrate),
            right: Mutex::default(),
        };
        (Arc::new(stream), media)
    }

    /// When a segment is published.
    pub(crate) fn published(&self, number: u64) -> Instant {
        self.feeder.published(number)
    }

    /// When it has to be there.
    fn due(&self, number: u64) -> Instant {
        self.published(number) + HOLDS
    }

    /// The segments that are published in this time, none of the first playlist among them.
    pub(crate) fn segments(&self, time: &std::ops::Range<Instant>) -> impl Iterator<Item = u64> {
        let (from, until) = (time.start, time.end);
        (WINDOW..)
            .skip_while(move |number| self.published(*number) < from)
            .take_while(move |number| self.published(*number) < until)
    }

    fn right(&self, number: u64) -> Arc<[u8]> {
        let mut right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || live::segment(number, self.length).into();
        let bytes = Arc::clone(right.entry(number).or_insert_with(make));
        while right.len() > 4 * usize::try_from(WINDOW).expect("it is small") {
            right.pop_first();
        }
        bytes
    }
}

/// What one viewer has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// The number of its first segment.
    first: u64,
    /// When each segment from the first on was there; `None` if the playlist named it no more.
    played: Vec<Option<Instant>>,
    wrong: usize,
    pub(crate) changes: Vec<Change>,
    /// What went wrong, and how often.
    errors: BTreeMap<String, usize>,
}

/// A viewer, until the crowd ends.
pub(crate) struct Viewer {
    pub(crate) half: Half,
    asked: Instant,
    seen: Arc<Mutex<Seen>>,
}

impl Viewer {
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long its first segment took, once it has one.
    pub(crate) fn waited(&self) -> Option<Duration> {
        let first = self.seen(|seen| seen.played.first().copied().flatten())?;
        Some(first - self.asked)
    }
}

/// What all of them saw in a time: segments that were due in it.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    pub(crate) segments: usize,
    pub(crate) late: usize,
    pub(crate) wrong: usize,
    /// The least time between the arrival of a segment and its show, and that which 99 of 100 had.
    pub(crate) least: Duration,
    pub(crate) most_had: Duration,
    pub(crate) errors: BTreeMap<String, usize>,
}

/// A host with viewers.
struct Hall {
    runtime: Option<Runtime>,
    host: Host,
}

impl Drop for Hall {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// All viewers.
pub(crate) struct Crowd {
    halls: Vec<Hall>,
    pub(crate) viewers: Vec<Viewer>,
    stream: Arc<Stream>,
    /// The hosts of servers, by their numbers.
    servers: Arc<[String]>,
}

impl Crowd {
    pub(crate) fn new(hosts: Vec<Host>, stream: Arc<Stream>, servers: Arc<[String]>) -> Self {
        let hall = |host: Host| {
            let entrance = host.namespace.entrance.clone();
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .on_thread_start(move || entrance.enter())
                .build();
            Hall {
                runtime: Some(runtime.expect("threads can be started")),
                host,
            }
        };
        Self {
            halls: hosts.into_iter().map(hall).collect(),
            viewers: Vec::new(),
            stream,
            servers,
        }
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.halls.iter().map(|hall| &hall.host)
    }

    /// So many viewers more, who begin at the servers that this names for their halves and numbers.
    /// They come one after the other.
    pub(crate) fn join(&mut self, count: usize, first: impl Fn(Half, usize) -> peer::Server) {
        for _ in 0..count {
            let number = self.viewers.len();
            let hall = &self.halls[number % self.halls.len()];
            let viewer = Viewer {
                half: hall.host.half,
                asked: Instant::now(),
                seen: Arc::default(),
            };
            let playing = play(
                first(viewer.half, number / self.halls.len()),
                Arc::clone(&viewer.seen),
                Arc::clone(&self.stream),
                Arc::clone(&self.servers),
            );
            let runtime = hall.runtime.as_ref().expect("it is there until the end");
            runtime.spawn(playing);
            self.viewers.push(viewer);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs this at the host of a viewer.
    pub(crate) fn run_at<T: Send + 'static>(
        &self,
        viewer: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let hall = &self.halls[viewer % self.halls.len()];
        let runtime = hall.runtime.as_ref().expect("it is there until the end");
        let (done, end) = std::sync::mpsc::channel();
        runtime.spawn(async move { drop(done.send(work.await)) });
        end.recv().expect("the work ends")
    }

    /// What was due in this time.
    pub(crate) fn sight(&self, time: &std::ops::Range<Instant>) -> Sight {
        let mut sight = Sight::default();
        let mut spare = Vec::new();
        let due = time.start - HOLDS..time.end - HOLDS;
        let numbers: Vec<u64> = self.stream.segments(&due).collect();
        for viewer in &self.viewers {
            viewer.seen(|seen| {
                sight.wrong += seen.wrong;
                for (error, count) in &seen.errors {
                    *sight.errors.entry(error.clone()).or_default() += count;
                }
                // One that has nothing yet is late with what was published after it came.
                let first = match seen.played.first() {
                    Some(_) => seen.first,
                    None => numbers
                        .iter()
                        .copied()
                        .find(|number| self.stream.published(*number) > viewer.asked)
                        .unwrap_or(u64::MAX),
                };
                for number in numbers.iter().filter(|number| **number >= first) {
                    sight.segments += 1;
                    let at = usize::try_from(number - first).expect("a short stream");
                    let due = self.stream.due(*number);
                    let there = seen.played.get(at).copied().flatten();
                    match there.and_then(|there| due.checked_duration_since(there)) {
                        Some(time) => spare.push(time),
                        None => sight.late += 1,
                    }
                }
            });
        }
        spare.sort_unstable();
        sight.least = spare.first().copied().unwrap_or_default();
        sight.most_had = spare.get(spare.len() / 100).copied().unwrap_or_default();
        sight
    }

    /// For each viewer, what it saw of its servers, and those that it lost.
    pub(crate) fn moves(&self, losses: &[Loss]) -> crate::moves::Moves {
        let mut moves = crate::moves::Moves::default();
        for viewer in &self.viewers {
            viewer.seen(|seen| {
                let served = |loss: Instant| {
                    let after = loss..loss + Duration::from_secs(3600);
                    let number = self.stream.segments(&after).next()?;
                    let at = usize::try_from(number.checked_sub(seen.first)?).ok()?;
                    seen.played.get(at).copied().flatten()
                };
                moves.add(&seen.changes, losses, viewer.half, served);
            });
        }
        moves
    }
}

/// The settings of a viewer that begins at this server.
pub(crate) fn settings(server: peer::Server, token_seconds: i64) -> peer::Config {
    let token = mint::token(&["/live/*"], token_seconds);
    peer::Config {
        token: Some(TokenSource::fixed(&token).expect("a token")),
        // What a viewer has seen is not seen again.
        cache: ByteSize(0),
        ..peer::Config::new(server, Trust::System)
    }
}

/// Reads an object to its end.
pub(crate) async fn read(client: &Client, path: &str) -> Result<Vec<u8>, peer::Error> {
    let mut object = client.open(path, None).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = object.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

/// Plays the stream from its newest segment on.
async fn play(
    server: peer::Server,
    seen: Arc<Mutex<Seen>>,
    stream: Arc<Stream>,
    servers: Arc<[String]>,
) {
    let note = |change: &mut dyn FnMut(&mut Seen)| {
        change(&mut seen.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let fail = async |error: peer::Error| {
        note(&mut |seen| *seen.errors.entry(error.to_string()).or_default() += 1);
        tokio::time::sleep(RETRY).await;
    };
    let client = loop {
        match Client::connect(settings(server.clone(), TOKEN_SECONDS)).await {
            Ok(client) => break client,
            Err(error) => fail(error).await,
        }
    };
    tokio::spawn(follow(client.stats(), Arc::clone(&seen), servers));
    let mut next = None;
    loop {
        let asked = Instant::now();
        let playlist = match read(&client, &format!("/live/{PLAYLIST}")).await {
            Ok(playlist) => String::from_utf8(playlist).unwrap_or_default(),
            Err(error) => {
                fail(error).await;
                continue;
            }
        };
        let named: Vec<u64> = playlist
            .lines()
            .filter_map(|line| line.strip_suffix(".ts")?.parse().ok())
            .collect();
        let Some((oldest, newest)) = named.first().copied().zip(named.last().copied()) else {
            note(&mut |seen| seen.wrong += 1);
            continue;
        };
        let mut number = next.unwrap_or_else(|| {
            note(&mut |seen| seen.first = newest);
            newest
        });
        // What the playlist names no more was missed.
        while number < oldest {
            note(&mut |seen| seen.played.push(None));
            number += 1;
        }
        while number <= newest {
            match read(&client, &format!("/live/{number}.ts")).await {
                Ok(bytes) => {
                    let (there, is_right) = (Instant::now(), bytes[..] == stream.right(number)[..]);
                    note(&mut |seen| {
                        seen.played.push(Some(there));
                        seen.wrong += usize::from(!is_right);
                    });
                    number += 1;
                }
                Err(error) => {
                    fail(error).await;
                    break;
                }
            }
        }
        next = Some(number);
        tokio::time::sleep_until((asked + ASKS).into()).await;
    }
}

/// Notes to which servers a client is connected.
async fn follow(
    mut stats: tokio::sync::watch::Receiver<peer::Stats>,
    seen: Arc<Mutex<Seen>>,
    servers: Arc<[String]>,
) {
    let mut before = 0_u32;
    loop {
        let mut now = 0;
        for source in &stats.borrow_and_update().sources {
            let number = servers.iter().position(|host| *host == source.server.host);
            if let (Some(number), true) = (number, source.hello.is_some()) {
                now |= 1 << number;
            }
        }
        let at = Instant::now();
        let changed = (0..servers.len()).filter(|number| (now ^ before) >> number & 1 == 1);
        let change = |server| Change {
            at,
            server,
            is_up: now >> server & 1 == 1,
        };
        let changes: Vec<Change> = changed.map(change).collect();
        if !changes.is_empty() {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.changes.extend(changes);
        }
        before = now;
        if stats.changed().await.is_err() {
            return;
        }
    }
}
