//! Attacks that only web pages can make, and what pages may do.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use ncserverd::wire::CloseCode;
use ncserverd::wire::message::{Accept, Delivery, Hello, Message, Request};
use nctest::mint;
use nctest::page::{Page, proto, request as connect, send_settings};
use quinn::Connection;

use crate::attacker::{Attacker, OPEN, ORIGIN, PAGE_URL, dial, get, request};
use crate::ground::{Ground, LARGE, PATIENCE, PLAYLIST, SMALL};

/// The maximum growth of a server by pages that it closes at once.
const LITTLE: ByteSize = ByteSize::mib(16);
/// The same by a thousand that stay.
const THOUSAND: ByteSize = ByteSize::mib(160);

impl Attacker {
    /// Connects as a page at this URL, and exchanges HELLOs.
    async fn at(ground: &Ground, url: &str) -> Self {
        let (local, server) = (Ipv4Addr::LOCALHOST, ground.address);
        Self::with_url(local, server, &ground.trust, OPEN, url)
            .await
            .greet()
            .await
    }

    /// Sends this on the request until the server has closed, for 10 s at most.
    async fn repeat_on_request(&mut self, bytes: &[u8]) {
        let sent = async { while self.page().send.write_all(bytes).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(10), sent)
            .await
            .expect("the session ends");
    }

    /// The session.
    fn page(&mut self) -> &mut Page {
        self.page.as_mut().expect("a page").get_mut()
    }
}

/// A connection on which nothing has been sent.
async fn connection(ground: &Ground) -> (quinn::Endpoint, Connection) {
    dial(ground.address, &ground.trust, OPEN).await.unwrap()
}

async fn is_closed(connection: &Connection) {
    tokio::time::timeout(PATIENCE, connection.closed())
        .await
        .expect("a closed connection");
}

/// Sends these bytes on the first bidirectional stream, after SETTINGS.
async fn instead_of_connect(ground: &Ground, bytes: &[u8]) {
    let (_endpoint, connection) = connection(ground).await;
    let _settings = send_settings(&connection).await;
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    let _ = send.write_all(bytes).await;
    is_closed(&connection).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins_and_other_paths_are_refused() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    for (url, origin) in [
        (PAGE_URL, "https://other.example"),
        (PAGE_URL, "http://page.example"),
        (PAGE_URL, "null"),
        ("https://localhost/", ORIGIN),
        ("https://localhost/ncs/", ORIGIN),
        ("https://localhost/NCS?token=x", ORIGIN),
    ] {
        let (_endpoint, connection) = connection(&ground).await;
        let refused = Page::open(&connection, url, Some(origin)).await.err();
        let status = if url == PAGE_URL { "403" } else { "404" };
        assert!(
            refused
                .as_ref()
                .is_some_and(|refused| refused.0.contains(status)),
            "{url} {origin}: {refused:?}"
        );
        is_closed(&connection).await;
    }
    assert_eq!(ground.metric("ncserverd_web_refused_total"), 6.0);
    assert_eq!(ground.metric("ncserverd_web_sessions_total"), 0.0);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_webtransport_ends_the_connection() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let mut without_protocol = Vec::new();
    // :method GET, :scheme https, :authority x, :path /, all from QPACK's static table.
    let fields = [0x00, 0x00, 0xd1, 0xd7, 0x50, 0x01, b'x', 0xc1];
    without_protocol.extend([0x01, u8::try_from(fields.len()).unwrap()]);
    without_protocol.extend(fields);
    for bytes in [
        &without_protocol[..],
        // Fields that need a dynamic table; nonsense; a huge frame; DATA before HEADERS; an
        // unfinished varint at the end.
        &[0x01, 0x03, 0x05, 0x00, 0x80],
        &[0x01, 0x04, 0xff, 0xff, 0xff, 0xff],
        &[0x01, 0xbf, 0xff, 0xff, 0xff],
        &[0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x00, 0x01, 0x00],
        &[0x04, 0x00],
    ] {
        instead_of_connect(&ground, bytes).await;
    }
    // SETTINGS of a client that speaks no WebTransport; another frame in their place; a push.
    for bytes in [
        &[0x00, 0x04, 0x00][..],
        &[0x00, 0x00, 0x00],
        &[0x00, 0x04, 0x01, 0x40],
    ] {
        let (_endpoint, connection) = connection(&ground).await;
        let mut stream = connection.open_uni().await.unwrap();
        let _ = stream.write_all(bytes).await;
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        let mut request = Vec::new();
        connect(PAGE_URL, Some(ORIGIN))
            .encode(&mut request)
            .unwrap();
        let _ = send.write_all(&request).await;
        is_closed(&connection).await;
    }
    // A control stream of no session, or of another.
    for bytes in [&[0x00, 0x00, 0x00][..], &[0x40, 0x41, 0x04]] {
        let (_endpoint, connection) = connection(&ground).await;
        let page = Page::open(&connection, PAGE_URL, Some(ORIGIN))
            .await
            .unwrap();
        let (mut send, _receive) = page.connection.open_bi().await.unwrap();
        let _ = send.write_all(bytes).await;
        is_closed(&connection).await;
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_no_session_in_time_is_closed() {
    let ground = Ground::with(&["session.hello_timeout=1s"]).await;
    let viewer = ground.viewer().await;
    let begun = Instant::now();
    let (_one, silent) = connection(&ground).await;
    let (_two, with_settings) = connection(&ground).await;
    let _settings = send_settings(&with_settings).await;
    let (_three, half) = connection(&ground).await;
    let _half_settings = send_settings(&half).await;
    let (mut send, _receive) = half.open_bi().await.unwrap();
    send.write_all(&[0x01, 0x40]).await.unwrap();
    let (_four, connected) = connection(&ground).await;
    let page = Page::open(&connected, PAGE_URL, Some(ORIGIN))
        .await
        .unwrap();
    for connection in [&silent, &with_settings, &half, &connected] {
        is_closed(connection).await;
    }
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    drop(page);
    let attacker = Attacker::silent(&ground).await;
    assert_eq!(attacker.close_code().await, CloseCode::Timeout, "no HELLO");
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_leaves_is_forgotten() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let (_endpoint, connection) = connection(&ground).await;
    let page = Page::open(&connection, PAGE_URL, Some(ORIGIN))
        .await
        .unwrap();
    let _control = page.control().await.unwrap();
    let connection = page.leave().await;
    is_closed(&connection).await;
    let sessions = || ground.metric("ncserverd_session_open_sessions");
    let begun = Instant::now();
    while sessions() > 1.0 && begun.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(sessions(), 1.0, "the viewer's");
    viewer.went_on().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn capsules_are_skipped_and_never_collected() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let mut attacker = Attacker::greeted(&ground).await;
    let page = attacker.page();
    for number in 0..20_000_u32 {
        let typ = proto::VarInt::from_u32(0x10000 + number);
        let payload = Bytes::from_static(&[7; 50]);
        page.send_capsule(&proto::Capsule::Unknown { typ, payload })
            .await;
    }
    assert!(attacker.is_served().await);
    // One that claims a gigabyte, of which some comes, in frames of which some are unknown.
    let huge = [
        &[0x00, 0x06, 0x40, 0x99, 0xbf, 0xff, 0xff, 0xff][..],
        &[0x21, 0x02, 7, 7],
    ]
    .concat();
    attacker.page().send.write_all(&huge).await.unwrap();
    let data = [&[0x00, 0x80, 0, 0x40, 0][..], &[7; 0x4000]].concat();
    for _ in 0..64 {
        attacker.page().send.write_all(&data).await.unwrap();
    }
    assert!(attacker.is_served().await);
    // An end without code and reason is one all the same, whatever follows.
    let mut attacker = Attacker::greeted(&ground).await;
    attacker
        .page()
        .send
        .write_all(&[0x00, 0x03, 0x68, 0x43, 0x00])
        .await
        .unwrap();
    attacker.repeat_on_request(&data).await;
    is_closed(&attacker.connection).await;
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_of_a_page_harm_nobody() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let first = Attacker::greeted(&ground).await;
    let mut held = Vec::new();
    let (mut refused, config) = (0, crate::attacker::early(ncserverd::tls::WEB_ALPN));
    for _ in 0..1000 {
        let connecting = first
            .endpoint()
            .connect_with(config.clone(), ground.address, "localhost")
            .unwrap();
        match connecting.await {
            Ok(connection) => match Page::open(&connection, PAGE_URL, Some(ORIGIN)).await {
                Ok(page) => held.push((connection, page)),
                Err(_) => refused += 1,
            },
            Err(_) => refused += 1,
        }
    }
    println!("{} sessions, {refused} refused", held.len());
    assert!(held.len() > 100);
    viewer.went_on().await;
    ground.assert_grown_less_than(THOUSAND);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_in_the_address_counts_and_is_never_logged() {
    let directory = tempfile::tempdir().unwrap();
    let (keys, token) = (
        directory.path().join("keys.json"),
        mint::token(&["/live/*"], 600),
    );
    std::fs::write(&keys, mint::keys().to_string()).unwrap();
    let settings = [
        &format!("admission.keys={}", keys.display())[..],
        "telemetry.log_filter=debug",
    ];
    let ground = Ground::admitting(&settings, Some(token.clone())).await;
    let viewer = ground.viewer().await;
    let mut admitted = Attacker::at(&ground, &format!("{PAGE_URL}?token={token}")).await;
    assert!(admitted.is_served().await);
    let mut without = Attacker::at(&ground, PAGE_URL).await;
    assert!(without.get(SMALL).await.is_err());
    let forged = format!("{}x", &token[..token.len() - 1]);
    let mut forger = Attacker::at(&ground, &format!("{PAGE_URL}?token={forged}")).await;
    assert!(forger.get(SMALL).await.is_err());
    let (local, url) = (Ipv4Addr::LOCALHOST, format!("{PAGE_URL}?token=%20"));
    let mut no_token = Attacker::with_url(local, ground.address, &ground.trust, OPEN, &url).await;
    no_token.say(&Message::Hello(Hello::defaults())).await;
    assert_eq!(no_token.close_code().await, CloseCode::Protocol);
    viewer.went_on().await;
    let log = ground.program.said();
    let signature = token.rsplit('.').next().unwrap();
    assert!(
        log.contains("session closed") && !log.contains(signature),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_datagrams_begin_with_the_session() {
    let ground = Ground::with(&["stream.live.block_bytes=1088"]).await;
    let mut page = Attacker::greeted(&ground).await;
    page.say(&get(90, PLAYLIST)).await;
    let mut stream = page.connection.accept_uni().await.unwrap();
    let object = stream.read_to_end(1 << 20).await.unwrap();
    assert_eq!(object[..6], [0x40, 0x54, 0x00, 0x51, 0x40, 90]);
    assert!(object[6..].starts_with(b"#EXTM3U"));

    let meta = page.get(LARGE).await.unwrap();
    assert!(matches!(meta.delivery, Delivery::Coded(_)));
    page.say(&Message::Request(request(5, meta.id, 0, 4))).await;
    let mut stream = page.connection.accept_uni().await.unwrap();
    let mut head = [0; 7];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head, [0x40, 0x54, 0x00, 0x50, 0x00, 5, 0x41]);

    let accept = Accept {
        coded: false,
        systematic: true,
        datagrams: true,
        recoded: false,
    };
    page.say(&Message::Request(Request {
        accept,
        ..request(6, meta.id, 1, 4)
    }))
    .await;
    let first = tokio::time::timeout(Duration::from_secs(2), page.connection.read_datagram()).await;
    let datagram = first.expect("a datagram in time").unwrap();
    // The session; then kind, flags and alias.
    assert_eq!(datagram[..2], [0x00, 0x40]);
    assert_eq!(datagram[3..5], [0, 6]);
}
