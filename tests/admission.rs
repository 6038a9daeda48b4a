//! Access rules of a running server: tokens, client certificates, their expiry, and limits of
//! connections.

#[path = "admission/place.rs"]
mod place;
mod program;

use std::time::{Duration, Instant};

use ncserverd::lab::lossy::{self, Direction, Link};
use ncserverd::object::RefusalCode;
use ncserverd::peer::{self, Client};
use ncserverd::wire::CloseCode;
use ncserverd::wire::message::{Credential, GRANT_FOREVER, Message, Subscribe, Token};
use ncserverd::{admission, config};
use nctest::mint;
use place::{
    HERE, PATIENCE, Place, Visitor, bytes, dial, drain, is_ours, is_refused, read, segment,
};
use serde_json::json;

/// Waits until something has happened elsewhere.
async fn until(what: &str, mut come: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !come() {
        assert!(Instant::now() < end, "{what} in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_both_algorithms_fetch_what_they_cover() {
    let place = Place::open().await;
    for token in [
        mint::token(&["/live/*"], 60),
        mint::eddsa(&mint::claims(&["/live/a.ts", "/live/b.ts"], 60)),
    ] {
        let client = place.client(&token).await;
        assert!(read(&client, "/live/a.ts").await.unwrap() == bytes(1, 200_000));
        assert!(read(&client, "/live/b.ts?x=1").await.unwrap() == bytes(2, 200_000));
        for path in ["/secret/a.ts", "/live/none.ts"] {
            let error = read(&client, path).await.unwrap_err();
            assert!(
                matches!(
                    &error,
                    peer::Error::Refused(refusal) if refusal.code == RefusalCode::Unknown
                ),
                "{path}: {error:?}"
            );
        }
    }
    assert_eq!(
        place.value("ncserverd_admission_tokens_total", Some("accepted")),
        2.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_gets_the_answer_of_what_is_not_there() {
    let place = Place::with(|rules, _| rules.grace = Duration::from_secs(6)).await;
    let good = mint::claims(&["/live/*"], 60);
    let mut owner = place.bearer(&mint::token(&["/*"], 60)).await;
    let wanted = segment(&owner.get("/live/a.ts").await.unwrap().unwrap());
    let missing = owner.get("/nowhere/a.ts").await.unwrap().unwrap_err();
    assert_eq!(
        owner.get("/live/none.ts").await.unwrap().unwrap_err(),
        missing
    );
    let secret = place.origin.count("/secret/a.ts");
    let changed = {
        let (head, signature) = mint::token(&["/live/*"], 60)
            .rsplit_once('.')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let (header, _) = head.split_once('.').unwrap();
        format!(
            "{header}.{}.{signature}",
            mint::base64url(mint::claims(&["/*"], 600).to_string().as_bytes())
        )
    };
    let mut early = good.clone();
    early["nbf"] = json!(good["exp"].as_f64().unwrap());
    let cases = [
        ("none", None, CloseCode::Auth),
        (
            "expired",
            Some(mint::token(&["/live/*"], -1)),
            CloseCode::Auth,
        ),
        (
            "not yet",
            Some(mint::hs256("h", &mint::SECRET, &early)),
            CloseCode::Auth,
        ),
        (
            "forged",
            Some(mint::hs256("h", &[8; 32], &good)),
            CloseCode::Auth,
        ),
        ("changed", Some(changed), CloseCode::Auth),
        (
            "unknown key",
            Some(mint::hs256("x", &mint::SECRET, &good)),
            CloseCode::Auth,
        ),
        ("unsigned", Some(mint::unsigned(&good)), CloseCode::Auth),
        (
            "public key as a secret",
            Some(mint::hs256("e", &mint::public_key(), &good)),
            CloseCode::Auth,
        ),
        ("no token at all", Some("x".to_owned()), CloseCode::Auth),
        // A valid token, but for another path: the connection stays open until the server ends.
        (
            "other scope",
            Some(mint::token(&["/other/*"], 60)),
            CloseCode::GoingAway,
        ),
    ];
    let mut visitors = Vec::new();
    for (name, token, code) in cases {
        let mut visitor = place.visitor().await;
        if let Some(token) = token {
            visitor
                .send(Message::Auth(Credential::Token(Token(token))))
                .await;
            let Ok(Message::Grant { lasts_ms }) = visitor.hear().await else {
                panic!("{name}: no grant")
            };
            assert_eq!(lasts_ms > 0, code != CloseCode::Auth, "{name}");
        }
        for path in [
            "/live/a.ts",
            "/live/none.ts",
            "/secret/a.ts",
            "/secret/none.ts",
            "/nowhere/a.ts",
            "/live/../x",
        ] {
            assert_eq!(
                visitor.get(path).await.unwrap().unwrap_err(),
                missing,
                "{name}: {path}"
            );
        }
        visitor
            .send(Message::Subscribe(Subscribe {
                request: 99,
                stream: "live".into(),
            }))
            .await;
        let Ok(Message::Error(error)) = visitor.hear().await else {
            panic!("{name}: a subscription")
        };
        assert_eq!(
            (error.code, error.retry_after_ms, error.reason),
            (missing.code, missing.retry_after_ms, missing.reason.clone())
        );
        visitor.request(5, wanted, 10).await;
        let rejected = Message::Reject {
            alias: 5,
            code: RefusalCode::Unknown,
            retry_after_ms: 0,
        };
        assert_eq!(
            visitor.hear().await.unwrap(),
            rejected,
            "{name}: a segment that is there"
        );
        visitors.push((name, visitor, code));
    }
    assert_eq!(
        place.origin.count("/secret/a.ts"),
        secret,
        "nobody looks for what may not be had"
    );
    let (others, closed): (Vec<_>, Vec<_>) = visitors
        .into_iter()
        .partition(|(.., code)| *code != CloseCode::Auth);
    for (name, visitor, code) in closed {
        assert_eq!(visitor.close_code().await, code, "{name}");
    }
    assert!(
        owner.get("/live/b.ts").await.unwrap().is_ok(),
        "whoever is admitted goes on"
    );
    for (result, count) in [
        ("expired", 1),
        ("early", 1),
        ("forged", 2),
        ("unknown_key", 2),
        ("malformed", 2),
        ("accepted", 2),
    ] {
        assert_eq!(
            place.value("ncserverd_admission_tokens_total", Some(result)),
            f64::from(count),
            "{result}"
        );
    }
    assert_eq!(place.value("ncserverd_session_unadmitted_total", None), 9.0);
    place.server.drain(Duration::ZERO).await;
    for (name, visitor, code) in others {
        assert_eq!(visitor.close_code().await, code, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_in_mid_session_takes_blocks_and_connection_along() {
    let place = Place::open().await;
    // Slow enough for the segment to be still on its way when the token expires.
    let mut claims = mint::claims(&["/live/*"], 4);
    claims["ncs"]["rate"] = json!(40_000);
    let mut visitor = place
        .bearer(&mint::hs256("h", &mint::SECRET, &claims))
        .await;
    let meta = visitor.get("/live/a.ts").await.unwrap().unwrap();
    visitor.request(5, segment(&meta), 400).await;
    let stream = tokio::time::timeout(PATIENCE, visitor.connection.accept_uni())
        .await
        .unwrap()
        .unwrap();
    let blocks = tokio::spawn(drain(stream));
    let rejected = Message::Reject {
        alias: 5,
        code: RefusalCode::Unknown,
        retry_after_ms: 0,
    };
    assert_eq!(
        visitor.hear().await.unwrap(),
        Message::Grant { lasts_ms: 0 }
    );
    assert_eq!(visitor.hear().await.unwrap(), rejected);
    let received = tokio::time::timeout(PATIENCE, blocks)
        .await
        .expect("the stream of blocks ends")
        .unwrap();
    assert!(received > 0 && received < 400 * 4096, "{received} bytes");
    let sent = place.value("ncserverd_session_sent_blocks_total", None);
    visitor.request(6, segment(&meta), 400).await;
    assert_eq!(
        visitor.hear().await.unwrap(),
        Message::Reject {
            alias: 6,
            code: RefusalCode::Unknown,
            retry_after_ms: 0
        }
    );
    assert_eq!(visitor.close_code().await, CloseCode::Auth);
    assert_eq!(
        place.value("ncserverd_session_sent_blocks_total", None),
        sent,
        "nothing more was sent"
    );
    assert_eq!(place.value("ncserverd_session_lapsed_total", None), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_renewed_in_its_file_keeps_a_client_going() {
    let place = Place::open().await;
    let file = place.directory.path().join("token");
    std::fs::write(&file, mint::token(&["/live/*"], 5)).unwrap();
    let token = Some(peer::TokenSource::File(file.clone()));
    let client = Client::connect(peer::Config {
        token,
        ..place.client_config()
    })
    .await
    .unwrap();
    assert!(read(&client, "/live/a.ts").await.unwrap() == bytes(1, 200_000));
    std::fs::write(&file, mint::token(&["/live/*"], 60)).unwrap();
    let accepted = || place.value("ncserverd_admission_tokens_total", Some("accepted"));
    until("the newer token", || accepted() >= 2.0).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(read(&client, "/live/b.ts").await.unwrap() == bytes(2, 200_000));
    assert_eq!(
        (client.stats().borrow().reconnects, accepted()),
        (0, 2.0),
        "the connection has stood all the time"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_rotate_while_the_server_runs() {
    let place = Place::with(|rules, _| rules.refresh = Duration::from_millis(50)).await;
    let (old, new) = (
        mint::secret_key("h", &mint::SECRET),
        mint::secret_key("n", &[8; 32]),
    );
    let write = |keys: &[&serde_json::Value]| {
        std::fs::write(place.keys_file(), json!({ "keys": keys }).to_string()).unwrap()
    };
    let reloads = |result: &str| place.value("ncserverd_admission_reloads_total", Some(result));
    let claims = mint::claims(&["/live/*"], 600);
    let (by_old, by_new) = (
        mint::hs256("h", &mint::SECRET, &claims),
        mint::hs256("n", &[8; 32], &claims),
    );

    let mut first = place.bearer(&by_old).await;
    assert!(first.get("/live/a.ts").await.unwrap().is_ok());
    assert!(
        place
            .bearer(&by_new)
            .await
            .get("/live/a.ts")
            .await
            .unwrap()
            .is_err()
    );

    write(&[&old, &new]);
    until("the second key", || reloads("taken") >= 1.0).await;
    let mut second = place.bearer(&by_new).await;
    assert!(
        second.get("/live/a.ts").await.unwrap().is_ok()
            && first.get("/live/b.ts").await.unwrap().is_ok()
    );

    std::fs::write(place.keys_file(), "{\"keys\": [").unwrap();
    until("a failure", || reloads("failed") >= 1.0).await;
    assert!(
        first.get("/live/a.ts").await.unwrap().is_ok(),
        "the old set goes on"
    );
    assert!(
        place
            .bearer(&by_old)
            .await
            .get("/live/a.ts")
            .await
            .unwrap()
            .is_ok()
    );

    write(&[&new]);
    until("the first key's end", || reloads("taken") >= 2.0).await;
    assert_eq!(
        first.close_code().await,
        CloseCode::Auth,
        "its token's key is gone"
    );
    assert!(second.get("/live/b.ts").await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_the_rules_of_sessions_that_stand() {
    let mut place = Place::open().await;
    let mut visitor = place.bearer(&mint::token(&["/live/*"], 600)).await;
    assert!(visitor.get("/live/a.ts").await.unwrap().is_ok());
    let faulty = place
        .directory
        .path()
        .join("nowhere.json")
        .to_str()
        .map(Into::into);
    let before = std::mem::replace(&mut place.config.admission.keys, faulty);
    assert!(place.server.apply(&place.config).await.is_err());
    assert!(
        visitor.get("/live/a.ts").await.unwrap().is_ok(),
        "refused whole"
    );
    place.config.admission.keys = before;
    place.config.admission.audience = Some("us".to_owned());
    place.server.apply(&place.config).await.unwrap();
    assert_eq!(visitor.close_code().await, CloseCode::Auth);
    place.config.admission.keys = None;
    place.server.apply(&place.config).await.unwrap();
    assert!(
        place
            .visitor()
            .await
            .get("/secret/a.ts")
            .await
            .unwrap()
            .is_ok(),
        "admission is off"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_opens_no_public_socket_to_everybody() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let mut place = Place::listening(everywhere).await;
    place.config.endpoint.listen = vec!["127.0.0.1:0".parse().unwrap()];
    for open in [
        admission::Config::default(),
        admission::Config {
            required: false,
            ..place.config.admission.clone()
        },
    ] {
        let config = config::Config {
            admission: open,
            ..place.config.clone()
        };
        let error = place
            .server
            .apply(&config)
            .await
            .expect_err("the socket is still bound to every address")
            .to_string();
        assert!(
            error.contains("restart") && error.contains("0.0.0.0"),
            "{error}"
        );
        assert!(
            place
                .visitor()
                .await
                .get("/live/a.ts")
                .await
                .unwrap()
                .is_err(),
            "a token is needed as before"
        );
    }
    let config = config::Config {
        admission: admission::Config {
            insecure: true,
            ..Default::default()
        },
        ..place.config.clone()
    };
    place
        .server
        .apply(&config)
        .await
        .expect("somebody has said to want that");
    assert!(
        place
            .visitor()
            .await
            .get("/live/a.ts")
            .await
            .unwrap()
            .is_ok()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificates_admit_and_nothing_else_does() {
    let (ours, theirs) = (mint::Authority::new("ours"), mint::Authority::new("theirs"));
    let pem = ours.pem();
    let place = Place::with(|rules, directory| {
        let file = directory.join("ca.pem");
        std::fs::write(&file, pem).unwrap();
        (rules.keys, rules.clients_ca) = (None, Some(file));
    })
    .await;
    let own = ours.client(place.directory.path());
    let certificate = Some(own.clone());
    let client = Client::connect(peer::Config {
        certificate,
        ..place.client_config()
    })
    .await
    .unwrap();
    assert!(read(&client, "/secret/a.ts").await.unwrap() == bytes(3, 200_000));
    assert_eq!(
        place.value("ncserverd_admission_certificates_total", None),
        1.0
    );

    let other = theirs.client(place.directory.path());
    for shown in [None, Some(&other)] {
        let refused = Visitor::connect(place.address(), &place.trust, HERE, shown).await;
        assert!(
            refused.is_err_and(|error| !is_ours(&error)),
            "the handshake fails"
        );
    }

    // New authorities apply to open sessions, too.
    let mut visitor = Visitor::connect(place.address(), &place.trust, HERE, Some(&own))
        .await
        .unwrap();
    assert!(visitor.get("/live/a.ts").await.unwrap().is_ok());
    std::fs::write(place.directory.path().join("ca.pem"), theirs.pem()).unwrap();
    place.server.apply(&place.config).await.unwrap();
    assert_eq!(visitor.close_code().await, CloseCode::Auth);
    assert!(
        Visitor::connect(place.address(), &place.trust, HERE, Some(&other))
            .await
            .is_ok()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_or_a_token_is_enough_where_both_are_read() {
    let authority = mint::Authority::new("ours");
    let place = Place::with_clients_of(&authority).await;
    let own = authority.client(place.directory.path());
    let mut shown = Visitor::connect(place.address(), &place.trust, HERE, Some(&own))
        .await
        .unwrap();
    assert!(shown.get("/secret/a.ts").await.unwrap().is_ok());
    shown
        .send(Message::Auth(Credential::Token(Token("whatever".into()))))
        .await;
    assert_eq!(
        shown.hear().await.unwrap(),
        Message::Grant {
            lasts_ms: GRANT_FOREVER
        },
        "it needs none"
    );
    let mut bearer = place.bearer(&mint::token(&["/live/*"], 60)).await;
    assert!(
        bearer.get("/live/a.ts").await.unwrap().is_ok()
            && bearer.get("/secret/a.ts").await.unwrap().is_err()
    );
    assert_eq!(place.visitor().await.close_code().await, CloseCode::Auth);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_has_so_many_connections_and_no_more() {
    let place = Place::open().await;
    let mut claims = mint::claims(&["/live/*"], 60);
    claims["ncs"]["connections"] = json!(2);
    let token = mint::hs256("h", &mint::SECRET, &claims);
    let mut first = place.bearer(&token).await;
    let mut second = place.bearer(&token).await;
    assert!(
        first.get("/live/a.ts").await.unwrap().is_ok()
            && second.get("/live/a.ts").await.unwrap().is_ok()
    );
    let third = place.bearer(&token).await;
    assert_eq!(third.close_code().await, CloseCode::Limit);
    assert_eq!(
        place.value("ncserverd_admission_limited_total", Some("token")),
        1.0
    );
    let mut other = place.bearer(&mint::token(&["/live/*"], 60)).await;
    assert!(
        other.get("/live/a.ts").await.unwrap().is_ok(),
        "another token has places of its own"
    );
    first.connection.close(0u32.into(), b"");
    drop(first);
    let client = place.client(&token).await;
    assert!(
        read(&client, "/live/b.ts").await.unwrap() == bytes(2, 200_000),
        "a place that is free again"
    );
}

/// A peer whose connection has gone silent opens another: both count as one, and the newer one
/// stays.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_visit_count_once() {
    let place = Place::open().await;
    let mut claims = mint::claims(&["/live/*"], 60);
    claims["ncs"]["connections"] = json!(1);
    let token = mint::hs256("h", &mint::SECRET, &claims);
    let mut before = place.bearer_of(1, &token).await;
    assert!(before.get("/live/a.ts").await.unwrap().is_ok());
    for _ in 0..3 {
        let mut next = place.bearer_of(1, &token).await;
        assert!(next.get("/live/a.ts").await.unwrap().is_ok());
        assert_eq!(before.close_code().await, CloseCode::Done);
        before = next;
    }
    assert_eq!(
        place.value("ncserverd_admission_limited_total", Some("token")),
        0.0
    );
    assert_eq!(
        place.bearer_of(2, &token).await.close_code().await,
        CloseCode::Limit,
        "another visit counts for itself"
    );
    // The place is free again once the last connection has closed.
    before.connection.close(0u32.into(), b"");
    for attempt in 0.. {
        let mut other = place.bearer_of(3, &token).await;
        if matches!(other.get("/live/a.ts").await, Ok(Ok(_))) {
            break;
        }
        assert!(attempt < 600, "a free place in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_who_tries_token_after_token_is_closed() {
    let place = Place::with(|rules, _| rules.grace = PATIENCE).await;
    let mut visitor = place.visitor().await;
    for number in 0..9 {
        let token = Token(mint::hs256(
            "h",
            &[100 + number; 32],
            &mint::claims(&["/live/*"], 60),
        ));
        visitor.send(Message::Auth(Credential::Token(token))).await;
    }
    assert_eq!(visitor.close_code().await, CloseCode::Limit);
    assert_eq!(
        place.value("ncserverd_admission_tokens_total", Some("forged")),
        8.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_so_many_connections_and_others_still_get_in() {
    let place = Place::with(|rules, _| {
        rules.keys = None;
        rules.address_connections_max = Some(3);
    })
    .await;
    let connect = |from: &str| dial(place.address(), &place.trust, from.parse().unwrap(), None);
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(connect("127.0.0.1").await.unwrap());
    }
    assert!(is_refused(&connect("127.0.0.1").await.unwrap_err()));
    assert!(place.value("ncserverd_admission_limited_total", Some("address")) >= 1.0);
    let mut other = Visitor::connect(
        place.address(),
        &place.trust,
        "127.0.0.2".parse().unwrap(),
        None,
    )
    .await
    .unwrap();
    assert!(other.get("/live/a.ts").await.unwrap().is_ok());
    let (endpoint, connection) = open.remove(0);
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    let end = Instant::now() + PATIENCE;
    while connect("127.0.0.1").await.is_err() {
        assert!(Instant::now() < end, "a place that is free again");
    }
}

/// Handshakes that never complete take at most half of an address's places, whoever sent their
/// first packets.
#[tokio::test(flavor = "multi_thread")]
async fn borrowed_addresses_do_not_shut_their_owners_out() {
    let place = Place::with(|rules, _| {
        rules.keys = None;
        rules.address_connections_max = Some(4);
    })
    .await;
    // The server's answers are lost, as for a spoofed sender address.
    let (to_server, to_client) = (Direction::default(), Direction::losing(1.0));
    let link = Link::start(lossy::Config {
        server: place.address(),
        seed: 1,
        to_server,
        to_client,
    })
    .unwrap();
    let spoofed: Vec<_> = (0..8)
        .map(|_| (link.address(), place.trust))
        .map(|(at, trust)| tokio::spawn(async move { dial(at, &trust, HERE, None).await.is_ok() }))
        .collect();
    until("handshakes that stand open", || {
        place.value("ncserverd_endpoint_handshakes_retried_total", None) >= 2.0
    })
    .await;
    for _ in 0..2 {
        let mut owner = place.visitor().await;
        assert!(owner.get("/live/a.ts").await.unwrap().is_ok());
    }
    spoofed.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_of_a_token_is_kept_by_all_its_connections() {
    let place = Place::open().await;
    let mut claims = mint::claims(&["/live/*"], 60);
    claims["sub"] = json!("ann");
    claims["ncs"]["rate"] = json!(100_000);
    let begun = Instant::now();
    let token = mint::hs256("h", &mint::SECRET, &claims);
    let (one, other) = (place.client(&token).await, place.client(&token).await);
    let (one, other) = tokio::join!(read(&one, "/live/a.ts"), read(&other, "/live/b.ts"));
    assert!(one.unwrap() == bytes(1, 200_000) && other.unwrap() == bytes(2, 200_000));
    // 400,000 bytes. One second's worth and one block leave at once.
    assert!(
        begun.elapsed() > Duration::from_millis(2500),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    let free = place.client(&mint::token(&["/live/*"], 60)).await;
    assert!(read(&free, "/live/a.ts").await.unwrap() == bytes(1, 200_000));
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "another token does not wait for it"
    );
}

/// Not told that the object does not exist: the server says at once that it requires credentials,
/// or rejects those shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_token_that_counts_hears_of_the_token() {
    let place = Place::open().await;
    let refused = async |client: &Client| match read(client, "/live/a.ts").await {
        Err(peer::Error::Refused(refusal)) => (refusal.code, refusal.reason),
        other => panic!("{other:?}"),
    };
    let client = place.client(&mint::token(&["/live/*"], -1)).await;
    let told = refused(&client).await;
    assert_eq!(
        told,
        (
            RefusalCode::Forbidden,
            "the server rejects the token".to_owned()
        )
    );
    let client = Client::connect(place.client_config()).await.unwrap();
    let told = refused(&client).await;
    assert_eq!(
        told,
        (
            RefusalCode::Forbidden,
            "the server requires a token or a client certificate".to_owned()
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ncpeer_brings_its_token_and_its_certificate() {
    let authority = mint::Authority::new("ours");
    let place = Place::with_clients_of(&authority).await;
    let here = place.directory.path().to_owned();
    drop(authority.client(&here));
    std::fs::write(
        here.join("token"),
        format!("{}\n", mint::token(&["/live/*"], 60)),
    )
    .unwrap();
    let url = format!("ncs://{}", place.address());
    let ncserverd::tls::Trust::Fingerprint(fingerprint) = place.trust else {
        panic!("a pinned certificate")
    };
    let fetch = |path: &'static str, with: Vec<&'static str>| {
        let mut command = std::process::Command::new(program::program("ncpeer"));
        command
            .args([
                "fetch",
                &url,
                path,
                "-o",
                "-",
                "--fingerprint",
                &fingerprint.to_string(),
            ])
            .args(with)
            .current_dir(&here);
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    for (path, with, code) in [
        ("/live/a.ts", vec!["--token-file", "token"], 0),
        (
            "/live/a.ts",
            vec!["--cert", "client.crt", "--cert-key", "client.key"],
            0,
        ),
        ("/secret/a.ts", vec!["--token-file", "token"], 4),
        ("/live/a.ts", vec![], 5),
        ("/live/a.ts", vec!["--token", "not-one-of-its-own"], 5),
        ("/live/a.ts", vec!["--token-file", "nowhere"], 2),
        ("/live/a.ts", vec!["--token", "a b"], 2),
        ("/live/a.ts", vec!["--cert", "client.crt"], 2),
    ] {
        let output = fetch(path, with.clone()).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{path} {with:?}: {said}");
        assert!(
            code != 0 || output.stdout == bytes(1, 200_000),
            "{path} {with:?}"
        );
        assert!(
            !with.contains(&"not-one-of-its-own") || said.contains("rejects the token"),
            "{said}"
        );
        assert!(
            !with.is_empty()
                || said.contains("the server requires a token (--token, --token-file)"),
            "{said}"
        );
        assert!(code != 5 || !said.contains("no such object"), "{said}");
    }
}
