//! Attacks on a peer by its sources.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use bytesize::ByteSize;
use ncserverd::object::{RefusalCode, SegmentId};
use ncserverd::peer::{self, Client};
use ncserverd::tls::Trust;
use ncserverd::wire::CloseCode;
use ncserverd::wire::message::{
    Credential, Introduction, Message, RequestError, StopReason, Subscribe, Ticket, Token,
};
use tempfile::TempDir;

use crate::attacker::{HUGE, frame, get, varint};
use crate::ground::{Ground, LARGE, LARGE_BYTES, LARGE_SEED, PATIENCE, Program, bytes};
use crate::imposter::{Act, BLOCK_BYTES, Imposter, N, Row, SEGMENT_BYTES, coded};
use crate::program::program;

/// The memory of a peer with honest sources: the program, its buffers, and a part of an object.
const PLAIN: ByteSize = ByteSize::mib(96);

/// A peer that fetches one object.
struct Fetch {
    program: Program,
    directory: TempDir,
    peak: ByteSize,
}

impl Fetch {
    fn start(sources: &[&str]) -> Self {
        Self::with(sources, &[])
    }

    fn with(sources: &[&str], flags: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let mut command = Command::new(program("ncpeer"));
        command
            .env_clear()
            .args(["fetch", sources[0], LARGE, "-o"])
            .arg(directory.path().join("large"));
        for source in &sources[1..] {
            command.args(["--source", source]);
        }
        command.args(flags);
        Self {
            program: Program::start(&mut command),
            directory,
            peak: ByteSize(0),
        }
    }

    fn measure(&mut self) {
        self.peak = self.peak.max(self.program.peak().unwrap_or_default());
    }

    /// Records its peak memory until it ends or `what` completes.
    async fn watch<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        let mut what = std::pin::pin!(tokio::time::timeout(PATIENCE, what));
        loop {
            tokio::select! {
                come = &mut what => {
                    self.measure();
                    return come.expect("it comes in time");
                }
                _ = tick.tick() => self.measure(),
            }
        }
    }

    async fn end(&mut self) -> ExitStatus {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            self.measure();
            if let Some(status) = self.program.has_ended() {
                return status;
            }
            assert!(tokio::time::Instant::now() < end, "the peer does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// It gets the complete object.
    async fn succeeds(&mut self) {
        let status = self.end().await;
        assert!(status.success(), "{status}: {}", self.program.said());
        assert!(
            std::fs::read(self.directory.path().join("large")).unwrap()
                == bytes(LARGE_SEED, LARGE_BYTES)
        );
    }

    fn assert_nothing_is_handed_out(&self) {
        assert_eq!(
            self.directory
                .path()
                .read_dir()
                .unwrap()
                .filter(|entry| entry.as_ref().unwrap().file_name() == "large")
                .count(),
            0
        );
    }

    fn assert_less_than(&self, most: ByteSize) {
        assert!(
            self.peak > ByteSize(0) && self.peak < most,
            "the peer had {}, and {most} was the most",
            self.peak
        );
    }
}

/// A peer with only an imposter closes with this code, and stays within this memory.
async fn alone(act: Act, code: CloseCode, most: ByteSize) {
    let what = format!("{act:?}");
    let what = what.get(..80).unwrap_or(&what);
    // It ends a few milliseconds after it started, which may be before its memory was measured.
    for _ in 0..10 {
        let mut imposter = Imposter::start(act.clone());
        let mut peer = Fetch::start(&[&imposter.url()]);
        let closed = peer.watch(imposter.close_code()).await;
        assert_eq!(closed, Ok(code), "{what}: {}", peer.program.said());
        peer.assert_nothing_is_handed_out();
        if peer.peak > ByteSize(0) {
            return peer.assert_less_than(most);
        }
    }
    panic!("{what}: the peer's memory could not be measured");
}

/// A peer with an imposter and an honest server.
async fn beside_an_honest_server(ground: &Ground, act: Act) -> Imposter {
    let imposter = Imposter::start(act);
    let honest = ground.source();
    let honest = format!(
        "ncs://{}:{}#{}",
        honest.host,
        honest.port,
        honest.fingerprint.unwrap()
    );
    // The imposter is asked first, and the other when it does not answer; after that the peer uses
    // both.
    let mut peer = Fetch::start(&[&imposter.url(), &honest]);
    peer.succeeds().await;
    peer.assert_less_than(PLAIN);
    imposter
}

/// Other sources may belong to anyone, who could then use the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_goes_to_the_first_server_and_to_sources_marked_for_it() {
    let _turn = crate::ground::turn();
    let mut sources = [(); 3].map(|()| Imposter::start(Act::Says(Vec::new())));
    let urls = sources.each_ref().map(Imposter::url);
    let marked = format!("{},token", urls[2]);
    let _peer = Fetch::with(&[&urls[0], &urls[1], &marked], &["--token", "secret"]);
    let mut shown = Vec::new();
    for source in &mut sources {
        assert!(matches!(source.hears().await, Message::Hello(_)));
        // A token follows HELLO in the same write.
        let next = tokio::time::timeout(Duration::from_millis(500), source.hears()).await;
        shown.push(
            matches!(next, Ok(Message::Auth(Credential::Token(Token(token)))) if token == "secret"),
        );
    }
    assert_eq!(shown, [true, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_meta_of_impossible_shape_ends_the_connection() {
    let _turn = crate::ground::turn();
    for (length, block_bytes, n_max, code) in [
        (1 << 20, 4096, 65_535, CloseCode::Protocol),
        (1 << 20, 4096, 1025, CloseCode::Protocol),
        (1 << 20, 4096, 0, CloseCode::Protocol),
        (1 << 20, HUGE, 128, CloseCode::Protocol),
        (1 << 20, 65_552, 128, CloseCode::Protocol),
        (1 << 20, 0, 128, CloseCode::Protocol),
        (HUGE, 4096, 128, CloseCode::Protocol),
        (HUGE, 64, 1, CloseCode::Protocol),
        ((64 << 20) + 1, 4096, 128, CloseCode::Protocol),
        (0, 4096, 128, CloseCode::Protocol),
    ] {
        alone(Act::Names(coded(length, block_bytes, n_max)), code, PLAIN).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_segment_there_may_be_takes_memory_for_what_comes_of_it() {
    let _turn = crate::ground::turn();
    // A million blocks in a thousand generations, of which none arrives.
    let mut imposter = Imposter::start(Act::Names(coded(64 << 20, 64, 1024)));
    let mut peer = Fetch::start(&[&imposter.url()]);
    peer.watch(async { while !matches!(imposter.hears().await, Message::Request(_)) {} })
        .await;
    peer.watch(tokio::time::sleep(Duration::from_secs(2))).await;
    assert!(
        peer.program.has_ended().is_none(),
        "it waits for its blocks: {}",
        peer.program.said()
    );
    peer.assert_less_than(PLAIN);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_says_out_of_place_ends_the_connection() {
    let _turn = crate::ground::turn();
    let path = [&varint(10)[..], b"/live/0.ts"].concat();
    for says in [
        // A META that was not requested, and answers to requests that never existed.
        frame(
            0x0e,
            &[&varint(77)[..], &path, &coded(1 << 20, 4096, 128)].concat(),
        ),
        frame(0x0a, &[&varint(77)[..], &[8, 0, 0]].concat()),
        frame(0x28, b""),
        frame(0, &[0]),
        Message::Subscribe(Subscribe {
            request: 1,
            stream: "live".into(),
        })
        .to_frame()
        .to_vec(),
        varint(0x0e).into_iter().chain(varint(HUGE)).collect(),
    ] {
        alone(Act::Says(says), CloseCode::Protocol, PLAIN).await;
    }
    for begins in [
        &[0x53, 0, 0][..],
        &[0x51, 0x40, 1],
        &[0x51, 0x40, 77, 1, 2, 3],
    ] {
        alone(Act::Stream(begins.to_vec()), CloseCode::Protocol, PLAIN).await;
    }
}

/// Messages without effect from a server are skipped, as from a client.
#[tokio::test(flavor = "multi_thread")]
async fn what_means_nothing_is_skipped() {
    let ground = Ground::new().await;
    let nothing = |alias: u16| {
        [
            Message::Reject {
                alias,
                code: RefusalCode::Unknown,
                retry_after_ms: HUGE,
            }
            .to_frame(),
            Message::Stop {
                alias,
                reason: StopReason::Complete,
            }
            .to_frame(),
            Message::Credit {
                alias,
                blocks: u32::MAX,
            }
            .to_frame(),
            Message::Grant { lasts_ms: HUGE }.to_frame(),
        ]
        .concat()
    };
    let mut says: Vec<u8> = (60_000..65_000)
        .flat_map(nothing)
        .chain(frame(0x21, &[7; 60_000]).repeat(50))
        .collect();
    beside_an_honest_server(&ground, Act::Says(says.clone())).await;
    // A GET after all these is answered, so the peer has read everything and stayed connected.
    says.extend(get(7, "/live/0.ts").to_frame());
    let mut imposter = Imposter::start(Act::Says(says));
    let _peer = Fetch::start(&[&imposter.url()]);
    while !matches!(
        imposter.hears().await,
        Message::Error(RequestError { request: 7, .. })
    ) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_without_end_ends_the_connection() {
    let _turn = crate::ground::turn();
    let sends = |bytes, named| Act::Sends { bytes, named };
    alone(sends(1 << 30, Some(100_000)), CloseCode::Protocol, PLAIN).await;
    // Too few bytes are also an error.
    alone(sends(1 << 16, Some(100_000)), CloseCode::Protocol, PLAIN).await;
    // Before its META an object may have up to 64 MiB, in a buffer that grows by doubling.
    alone(
        sends(1 << 30, None),
        CloseCode::Protocol,
        ByteSize::mib(256),
    )
    .await;
    alone(sends(1 << 20, Some(HUGE - 1)), CloseCode::Limit, PLAIN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_nobody_asked_for_end_the_connection_or_are_refused() {
    let ground = Ground::new().await;
    alone(Act::Datagrams(20_000), CloseCode::Flood, PLAIN).await;
    for act in [Act::Datagrams(20_000), Act::Streams(2_000)] {
        // It acts when the path is requested from it, which does not happen if the other one
        // connects first.
        let mut attempts = 0;
        while !beside_an_honest_server(&ground, act.clone())
            .await
            .has_heard(|message| matches!(message, Message::Get(_)))
        {
            attempts += 1;
            assert!(attempts < 10, "{act:?}: nothing is asked of it");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_beyond_credit_end_the_connection() {
    let ground = Ground::new().await;
    for row in [Row::Zero, Row::Low] {
        let mut imposter =
            beside_an_honest_server(&ground, Act::Blocks { excess: 1000, row }).await;
        assert_eq!(imposter.close_code().await, Ok(CloseCode::Flood), "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_without_end_ends_the_connection() {
    let ground = Ground::new().await;
    let mut imposter = beside_an_honest_server(
        &ground,
        Act::Blocks {
            excess: 0,
            row: Row::Seed,
        },
    )
    .await;
    assert_eq!(imposter.close_code().await, Ok(CloseCode::Flood));
}

/// A relay's rows may legitimately span a small space: nobody is blamed, and the others send what
/// is missing.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_bring_nothing_cost_time_and_no_segment() {
    let ground = Ground::new().await;
    for row in [Row::Zero, Row::Low] {
        let mut imposter = beside_an_honest_server(&ground, Act::Blocks { excess: 0, row }).await;
        // Abandoned, or closed for the flood of redundant rows.
        let code = imposter.close_code().await;
        assert!(
            matches!(code, Ok(CloseCode::Done | CloseCode::Flood)),
            "{row:?}: {code:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_and_does_not_read_is_left() {
    let _turn = crate::ground::turn();
    alone(Act::Asks, CloseCode::Flood, PLAIN).await;
}

/// Text for users is shown on their terminals.
#[tokio::test(flavor = "multi_thread")]
async fn a_reason_does_nothing_to_a_terminal() {
    let _turn = crate::ground::turn();
    let reason = "\u{1b}]0;owned\u{7}\u{1b}[2Jgone\u{202e}\nncpeer: all is well".as_bytes();
    let error = [
        &varint(1)[..],
        &varint(8),
        &varint(0),
        &varint(reason.len() as u64),
        reason,
    ]
    .concat();
    let imposter = Imposter::start(Act::Says(frame(0x0a, &error)));
    let mut peer = Fetch::start(&[&imposter.url()]);
    assert_eq!(peer.end().await.code(), Some(4));
    let said = peer.program.said();
    assert!(
        said.ends_with("ncpeer: refused: �]0;owned��[2Jgone��ncpeer: all is well"),
        "{said:?}"
    );
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said:?}");
}

/// After a timeout the user is told the cause.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_word_is_what_has_gone_wrong() {
    let _turn = crate::ground::turn();
    let tail = coded(
        u64::from(N) * BLOCK_BYTES as u64,
        BLOCK_BYTES as u64,
        N.into(),
    );
    for (act, said) in [
        (
            Act::Rejects(tail),
            "the request was refused: OVERLOAD, retry after 200 ms",
        ),
        (
            Act::Closes(CloseCode::Limit, b"\x1b[1mtoo many\n".to_vec()),
            "closed by the server with LIMIT: �[1mtoo many�",
        ),
        (
            Act::Closes(CloseCode::Overload, Vec::new()),
            "closed by the server with OVERLOAD",
        ),
        (Act::Streams(0), "timed out: no data arrived"),
    ] {
        let imposter = Imposter::start(act.clone());
        let server: peer::Server = imposter.url().parse().unwrap();
        let address = server.address();
        let short = Duration::from_secs(2);
        let config = peer::Config {
            answer_timeout: short,
            stall_timeout: short,
            ..peer::Config::new(server, Trust::System)
        };
        let client = Client::connect(config).await.unwrap();
        let object = async { client.open(LARGE, None).await?.read_to_end().await };
        let error = object.await.unwrap_err().to_string();
        assert!(
            error == said || error == format!("{address}: {said}"),
            "{act:?}: {error}"
        );
    }
}

/// All blocks come from one sender and are wrong: the segment is fetched twice, and nothing of it
/// is handed out.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_of_lies_is_not_handed_out() {
    let _turn = crate::ground::turn();
    let imposter = Imposter::start(Act::Lies(coded(
        u64::from(N) * BLOCK_BYTES as u64,
        BLOCK_BYTES as u64,
        N.into(),
    )));
    let mut peer = Fetch::start(&[&imposter.url()]);
    assert!(!peer.end().await.success());
    let said = peer.program.said();
    assert!(
        said.contains("ncpeer: the decoded bytes do not match the segment's hash"),
        "{said}"
    );
    peer.assert_nothing_is_handed_out();
    peer.assert_less_than(PLAIN);
}

impl Fetch {
    /// It gives up with this exit code and reason, and leaves no file.
    async fn fails(&mut self, code: i32, reason: &str) {
        let status = self.end().await;
        let mut said = self.program.said();
        for _ in 0..100 {
            // Its last output may still be on its way.
            if said.contains(reason) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            said += &self.program.said();
        }
        assert!(
            status.code() == Some(code) && said.contains(reason),
            "{status}: {said}"
        );
        assert_eq!(
            self.directory.path().read_dir().unwrap().count(),
            0,
            "{said}"
        );
    }
}

/// An object larger than any disk, made of one segment repeated.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_without_end_is_not_written_to_the_last_free_byte() {
    let _turn = crate::ground::turn();
    let repeats = |object_length| {
        Imposter::start(Act::Repeats {
            object_length,
            other_from: u64::MAX,
        })
    };
    let endless = repeats(Some(1 << 61));
    Fetch::start(&[&endless.url()])
        .fails(1, "the object has 2.0 EiB, more than the limit of ")
        .await;
    Fetch::with(&[&endless.url()], &["--max-bytes", "4MiB"])
        .fails(1, "more than the limit of 4.0 MiB (--max-bytes)")
        .await;
    // Of unknown length: the permitted bytes are written, then removed.
    let unknown = repeats(None);
    Fetch::with(&[&unknown.url()], &["--max-bytes", "4MiB"])
        .fails(1, "at least 4.5 MiB")
        .await;
    // Without a limit it also ends.
    Fetch::start(&[&unknown.url()])
        .fails(
            5,
            "the object has no length and repeats one segment endlessly",
        )
        .await;
    let mut info = Command::new(program("ncpeer"));
    info.env_clear().args([
        "info",
        &endless.url(),
        LARGE,
        "--fetch",
        "--max-bytes",
        "4MiB",
    ]);
    let told = tokio::task::spawn_blocking(move || info.output().unwrap())
        .await
        .unwrap();
    assert!(
        told.status.success()
            && String::from_utf8_lossy(&told.stdout).contains("fetched       4194304 bytes in "),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_two_versions_make_no_file() {
    let _turn = crate::ground::turn();
    let imposter = Imposter::start(Act::Repeats {
        object_length: Some(8 * SEGMENT_BYTES as u64),
        other_from: 3 * SEGMENT_BYTES as u64,
    });
    Fetch::start(&[&imposter.url()])
        .fails(5, "the object changed at the origin during the transfer")
        .await;
}

/// A source that rejects every request is not asked in a loop.
#[tokio::test(flavor = "multi_thread")]
async fn who_rejects_without_end_is_asked_now_and_then() {
    let _turn = crate::ground::turn();
    let mut imposter = Imposter::start(Act::RejectsWith(vec![
        RefusalCode::Deadline,
        RefusalCode::Overload,
    ]));
    let _peer = Fetch::start(&[&imposter.url()]);
    while !matches!(imposter.hears().await, Message::Request(_)) {}
    let end = tokio::time::Instant::now() + Duration::from_secs(2);
    let mut requests = 1;
    while let Ok(message) = tokio::time::timeout_at(end, imposter.hears()).await {
        requests += u32::from(matches!(message, Message::Request(_)));
    }
    // After 50, 100, 200, … ms, for each of a few segments of one generation.
    assert!(
        (2..100).contains(&requests),
        "{requests} requests in two seconds"
    );
}

/// A server gives one address to many peers.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_does_not_lead_a_peer_to_an_address_that_is_not_public() {
    let _turn = crate::ground::turn();
    let victim = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = victim.local_addr().unwrap();
    let named = |number: u32| {
        let mut identity = [7; 32];
        identity[..4].copy_from_slice(&number.to_be_bytes());
        let peers = vec![Introduction {
            address,
            identity,
            lasts_ms: 60_000,
            ticket: Ticket(vec![1].into()),
        }];
        Message::Peers {
            segment: SegmentId::of(&number.to_be_bytes()),
            peers,
        }
        .to_frame()
    };
    let says: Vec<u8> = (0..200).flat_map(named).collect();
    let packets = async |flags: &[&str]| {
        let imposter = Imposter::start(Act::Says(says.clone()));
        let _peer = Fetch::with(&[&imposter.url()], flags);
        let end = tokio::time::Instant::now() + Duration::from_secs(4);
        let (mut packets, mut buffer) = (0, [0; 2048]);
        while let Ok(Ok(_)) = tokio::time::timeout_at(end, victim.recv_from(&mut buffer)).await {
            packets += 1;
        }
        packets
    };
    assert_eq!(packets(&[]).await, 0);
    // Two attempts of a few packets each.
    let packets = packets(&["--private-peers"]).await;
    assert!((1..=24).contains(&packets), "{packets} packets");
}
