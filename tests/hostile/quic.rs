//! Attacks that only peers over QUIC itself can make.

use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncserverd::wire::message::{Hello, Message};
use ncserverd::wire::{ALPN, CloseCode};

use crate::attacker::{Attacker, OPEN, ORIGIN, dial, early};
use crate::ground::{Ground, PATIENCE};

/// The maximum growth of a server by peers that it closes at once.
const LITTLE: ByteSize = ByteSize::mib(16);

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_say_hello_in_time_is_closed() {
    let ground = Ground::with(&["session.hello_timeout=1s"]).await;
    let viewer = ground.viewer().await;
    let hello = Message::Hello(Hello::defaults()).to_frame();
    // Nothing at all, a stream without a byte, one byte, and byte after byte.
    let (_endpoint, nothing) = dial(ground.address, &ground.trust, OPEN).await.unwrap();
    let (empty, mut byte, mut drop_by_drop) = (
        Attacker::silent(&ground).await,
        Attacker::silent(&ground).await,
        Attacker::silent(&ground).await,
    );
    let begun = Instant::now();
    byte.say_bytes(&hello[..1]).await;
    let said = async {
        for byte in hello.iter().cycle() {
            drop_by_drop.say_bytes(std::slice::from_ref(byte)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            if drop_by_drop.connection.close_reason().is_some() {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, said)
        .await
        .expect("a closed connection");
    let late = begun.elapsed();
    assert!(
        (Duration::from_millis(900)..Duration::from_secs(4)).contains(&late),
        "{late:?}"
    );
    for attacker in [&empty, &byte, &drop_by_drop] {
        assert_eq!(attacker.close_code().await, CloseCode::Timeout);
    }
    let closed = tokio::time::timeout(PATIENCE, nothing.closed())
        .await
        .expect("a closed connection");
    let code = u64::from(CloseCode::Timeout.quic());
    assert!(
        matches!(
            &closed,
            quinn::ConnectionError::ApplicationClosed(close)
                if close.error_code.into_inner() == code
        ),
        "{closed}"
    );
    assert_eq!(ground.metric("ncserverd_session_violations_total"), 4.0);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// QUIC already prevents both, so no peer can break this rule.
#[tokio::test(flavor = "multi_thread")]
async fn no_stream_but_the_control_stream_can_be_opened() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let mut attacker = Attacker::greeted(&ground).await;
    let moment = Duration::from_millis(300);
    assert!(
        tokio::time::timeout(moment, attacker.connection.open_bi())
            .await
            .is_err()
    );
    assert!(
        tokio::time::timeout(moment, attacker.connection.open_uni())
            .await
            .is_err()
    );
    assert!(attacker.is_served().await);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_fails_the_handshake() {
    let ground = Ground::new().await;
    let attacker = Attacker::silent(&ground).await;
    for protocol in [&b"ncs/2"[..], b"h3"] {
        let connecting = attacker
            .endpoint()
            .connect_with(early(protocol), ground.address, "localhost")
            .unwrap();
        let closed = match connecting.await {
            Err(quinn::ConnectionError::ConnectionClosed(closed)) => closed,
            other => panic!("{other:?}"),
        };
        assert_eq!(closed.error_code, quinn::TransportErrorCode::crypto(120));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn early_data_is_not_taken() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let config = early(ALPN);
    let attacker = Attacker::silent(&ground).await;
    for _ in 0..3 {
        let connecting = attacker
            .endpoint()
            .connect_with(config.clone(), ground.address, "localhost")
            .unwrap();
        // Early data would be sent on this.
        let connection = match connecting.into_0rtt() {
            Ok((_, accepted)) => panic!("early data is accepted: {}", accepted.await),
            Err(connecting) => connecting.await.unwrap(),
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        connection.close(0_u32.into(), b"");
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// Where pages may connect, QUIC's limits leave room for their streams.
#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_a_page_are_not_for_others() {
    let ground = Ground::with(&[&format!("web.origins={ORIGIN}")]).await;
    let viewer = ground.viewer().await;
    let attacker = Attacker::greeted(&ground).await;
    let (mut send, _receive) = attacker.connection.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    assert_eq!(attacker.close_code().await, CloseCode::Protocol);
    let attacker = Attacker::greeted(&ground).await;
    let mut send = attacker.connection.open_uni().await.unwrap();
    send.write_all(b"x").await.unwrap();
    assert_eq!(attacker.close_code().await, CloseCode::Protocol);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}
