//! Some of the attacks on a relay, which has the same serving side as a server, to show that it
//! resists, too.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Instant;

use bytesize::ByteSize;
use ncserverd::object::SegmentId;
use ncserverd::peer;
use ncserverd::tls::Trust;
use ncserverd::wire::message::{Message, RequestError, Subscribe};
use ncserverd::wire::{ALPN, CloseCode};
use quinn::Endpoint;

use crate::attacker::{Attacker, HUGE, Window, early, frame, request, varint};
use crate::ground::{FILE_BYTES, FILES, Ground, Program, Viewer, bytes, connect, file, read};
use crate::program::program;

/// The maximum growth of a relay during an attack.
const SOME: ByteSize = ByteSize::mib(48);

/// A server in the form of the command line.
fn url(ground: &Ground) -> String {
    let source = ground.source();
    format!(
        "ncs://{}:{}#{}",
        source.host,
        source.port,
        source.fingerprint.unwrap()
    )
}

/// A relay of an honest server, after honest use.
struct Relay {
    ground: Ground,
    program: Program,
    config: peer::Config,
    before: ByteSize,
}

impl Relay {
    async fn start() -> Self {
        let ground = Ground::new().await;
        let mut command = Command::new(program("ncpeer"));
        command
            .env_clear()
            .args(["relay", &url(&ground), "--listen", "127.0.0.1:0"]);
        let program = Program::start(&mut command);
        let [server] = program.says(["relays at "]);
        let config = peer::Config::new(server.parse().unwrap(), Trust::System);
        let client = connect(config.clone()).await;
        for number in 0..FILES {
            assert!(read(&client, &file(number)).await.unwrap() == bytes(number, FILE_BYTES));
        }
        let before = program.peak().unwrap();
        Self {
            ground,
            program,
            config,
            before,
        }
    }

    async fn viewer(&self) -> Viewer {
        Viewer::start(connect(self.config.clone()).await, crate::ground::PACE)
    }

    async fn attacker(&self, window: Window) -> Attacker {
        let server = &self.config.servers[0];
        let at = SocketAddr::new(server.host.parse().unwrap(), server.port);
        Attacker::greeted_with(at, &Trust::Fingerprint(server.fingerprint.unwrap()), window).await
    }

    fn assert_grown_less_than(&self, most: ByteSize) {
        let growth = ByteSize(
            self.program
                .peak()
                .unwrap()
                .as_u64()
                .saturating_sub(self.before.as_u64()),
        );
        assert!(
            growth < most,
            "the relay has grown by {growth}, and {most} was the most"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_closes_on_what_a_server_closes_on() {
    let relay = Relay::start().await;
    let viewer = relay.viewer().await;
    let ask = |alias: u16| {
        Message::Request(request(alias, SegmentId::of(b"nowhere"), alias.into(), 1)).to_frame()
    };
    for (what, bytes, code) in [
        ("an unknown frame", frame(0x28, b""), CloseCode::Protocol),
        (
            "a frame that is too long",
            [varint(0x24), varint(HUGE)].concat(),
            CloseCode::Protocol,
        ),
        (
            "too many requests",
            (0..200).flat_map(ask).collect(),
            CloseCode::Limit,
        ),
    ] {
        let mut attacker = relay.attacker(crate::attacker::OPEN).await;
        attacker.say_bytes(&bytes).await;
        assert_eq!(attacker.close_code().await, code, "{what}");
    }
    viewer.went_on().await;
    relay.assert_grown_less_than(SOME);
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_that_do_not_read_keep_nothing_of_a_relay_from_the_others() {
    let relay = Relay::start().await;
    let viewer = relay.viewer().await;
    let mut attackers = Vec::new();
    for number in 0..16_u8 {
        let mut attacker = relay
            .attacker(Window {
                stream: 1 << 10,
                streams: 512,
            })
            .await;
        for alias in 0..24_u8 {
            let id = attacker
                .get(&file((number + alias) % FILES))
                .await
                .unwrap()
                .id;
            attacker
                .say(&Message::Request(request(alias.into(), id, 0, 2048)))
                .await;
        }
        attackers.push((attacker, Instant::now()));
    }
    for (attacker, begun) in &attackers {
        assert_eq!(
            attacker.close_code_within(*begun).await.0,
            CloseCode::Timeout
        );
    }
    viewer.went_on().await;
    relay.assert_grown_less_than(ByteSize::mib(96));
    relay.ground.assert_grown_less_than(SOME);
}

/// More streams than the server lets one peer subscribe to: the relay itself subscribes, for all
/// its peers.
#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_at_a_relay_do_not_cost_it_its_server() {
    let relay = Relay::start().await;
    let viewer = relay.viewer().await;
    let mut attackers = Vec::new();
    for number in 0..4 {
        let mut attacker = relay.attacker(crate::attacker::OPEN).await;
        for request in 0..8 {
            let stream = format!("stream-{number}-{request}");
            // Numbers that its GETs do not use.
            attacker
                .say(&Message::Subscribe(Subscribe {
                    request: 100 + request,
                    stream,
                }))
                .await;
        }
        attackers.push(attacker);
    }
    for attacker in &mut attackers {
        let mut answered = BTreeSet::new();
        while answered.len() < 8 {
            match attacker.hear().await.unwrap() {
                Message::SubscribeOk { request } | Message::Error(RequestError { request, .. }) => {
                    answered.insert(request);
                }
                _ => {}
            }
        }
        assert!(attacker.is_served().await);
    }
    viewer.went_on().await;
    assert_eq!(
        relay.ground.metric("ncserverd_session_violations_total"),
        0.0
    );
}

/// Clients without a ticket do not use the places for served viewers, and one address has only a
/// few.
#[tokio::test(flavor = "multi_thread")]
async fn who_shows_no_ticket_keeps_nobody_else_from_a_viewer_that_shares() {
    let ground = Ground::new().await;
    let mut command = Command::new(program("ncpeer"));
    command.env_clear().args([
        "gateway",
        &url(&ground),
        "--listen",
        "127.0.0.1:0",
        "--share",
        "127.0.0.1:0",
        "--share-peers",
        "2",
    ]);
    let program = Program::start(&mut command);
    let [address] = program.says(["played segments are shared at "]);
    let address: SocketAddr = address.parse().unwrap();
    let connect = async |last: u8| {
        let endpoint = Endpoint::client((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        let connection = endpoint
            .connect_with(early(ALPN), address, "localhost")
            .unwrap()
            .await?;
        Ok::<_, quinn::ConnectionError>((endpoint, connection))
    };
    let mut crowd = Vec::new();
    while let Ok(connected) = connect(2).await {
        crowd.push(connected);
        assert!(crowd.len() < 32, "one address has few");
    }
    // The number of served viewers, and four that may wait for a ticket.
    assert_eq!(crowd.len(), 2 + 4);
    connect(1).await.expect("another address finds room");
    assert!(
        crowd
            .iter()
            .all(|(_, connection)| connection.close_reason().is_none()),
        "while they wait for a ticket"
    );
}
