use std::path::Path;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use ncs_net::telemetry::Status;
use prometheus::Registry;
use ring::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::keys::testing::{SECRET, base64url, oct};
use super::*;

const DATE: Duration = Duration::from_secs(1_800_000_000);
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn now() -> Now {
    Now {
        instant: Instant::now(),
        date: DATE,
    }
}

fn later(now: Now, seconds: u64) -> Now {
    let by = Duration::from_secs(seconds);
    Now {
        instant: now.instant + by,
        date: now.date + by,
    }
}

fn token(kid: &str, secret: &[u8], claims: &Value) -> String {
    let header = json!({ "alg": "HS256", "kid": kid }).to_string();
    let message = format!(
        "{}.{}",
        base64url(header.as_bytes()),
        base64url(claims.to_string().as_bytes())
    );
    let tag = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, secret),
        message.as_bytes(),
    );
    format!("{message}.{}", base64url(tag.as_ref()))
}

/// A token for `/live/`, valid for `seconds` including the server's leeway.
fn for_live(seconds: u64) -> String {
    token(
        "a",
        &SECRET,
        &json!({
            "exp": DATE.as_secs() + seconds - 5,
            "sub": "ann",
            "ncs": { "paths": ["/live/*"] },
        }),
    )
}

fn write(file: &Path, keys: &[Value]) {
    std::fs::write(file, json!({ "keys": keys }).to_string()).unwrap();
}

struct Place {
    directory: TempDir,
    config: Config,
}

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("keys.json");
        write(&file, &[oct("a", &SECRET)]);
        Self {
            config: Config {
                keys: Some(file.to_str().unwrap().into()),
                ..Config::default()
            },
            directory,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("keys.json")
    }

    fn open(&self) -> Admission {
        open(&self.config)
    }
}

fn open(config: &Config) -> Admission {
    Admission::open(config, Metrics::new(&Registry::new()).unwrap()).unwrap()
}

fn visitor(admission: &Admission) -> Visitor {
    let place = admission.address(Instant::now(), HERE, true).unwrap();
    admission.visitor(place, Vec::new())
}

fn allows(access: &Access) -> bool {
    access.allows("/live/1.ts")
}

#[test]
fn without_keys_everybody_is_free_and_with_them_nobody_is() {
    let free = open(&Config::default());
    let mut guest = visitor(&free);
    assert_eq!(guest.enter(now()), Ok(Access::Free));
    assert_eq!(
        guest.present(now(), "anything".into()),
        Ok((true, Access::Free))
    );

    let place = Place::new();
    let now = now();
    let mut guest = visitor(&place.open());
    let refused = Access::Refused {
        until: now.instant + place.config.grace,
    };
    assert_eq!(guest.enter(now), Ok(refused.clone()));
    assert_eq!(guest.present(now, "anything".into()), Ok((false, refused)));
    let (taken, access) = guest.present(now, for_live(60)).unwrap();
    assert!(taken && allows(&access) && !access.allows("/files/a"));
    assert_eq!(access.due(), Some(now.instant + Duration::from_secs(60)));
    let lapsed = access
        .lapsed(now.instant + Duration::from_secs(60))
        .unwrap();
    assert_eq!(
        lapsed,
        Access::Refused {
            until: now.instant + Duration::from_secs(70)
        }
    );
}

#[test]
fn a_bad_renewal_leaves_what_the_token_before_has_brought() {
    let (place, now) = (Place::new(), now());
    let mut guest = visitor(&place.open());
    guest.present(now, for_live(60)).unwrap();
    let (taken, access) = guest.present(later(now, 30), "bad".into()).unwrap();
    assert!(!taken && allows(&access));
    assert!(
        !allows(&guest.present(later(now, 60), "bad".into()).unwrap().1),
        "until its end"
    );
    assert!(guest.present(later(now, 61), for_live(120)).unwrap().0);
}

#[test]
fn where_nothing_is_required_a_token_is_a_limit_and_its_end_a_release() {
    let mut place = Place::new();
    place.config.required = false;
    let (admission, now) = (place.open(), now());
    let mut guest = visitor(&admission);
    assert_eq!(guest.enter(now), Ok(Access::Free));
    assert_eq!(guest.present(now, "bad".into()), Ok((false, Access::Free)));
    let (_, access) = guest.present(now, for_live(60)).unwrap();
    assert!(allows(&access) && !access.allows("/files/a"));
    assert_eq!(
        access.lapsed(now.instant + Duration::from_secs(60)),
        Some(Access::Free)
    );
}

#[test]
fn tokens_of_one_subject_are_counted_together() {
    let mut place = Place::new();
    place.config.token_connections_max = Some(2);
    let (admission, now) = (place.open(), now());
    let mut guests: Vec<_> = (0..3).map(|_| visitor(&admission)).collect();
    assert!(
        guests[0].present(now, for_live(60)).is_ok()
            && guests[1].present(now, for_live(90)).is_ok()
    );
    assert_eq!(guests[2].present(now, for_live(70)), Err(Limited));
    assert!(
        guests[0].present(now, for_live(95)).is_ok(),
        "a renewal takes no second place"
    );
    guests.remove(0);
    assert!(guests[1].present(now, for_live(70)).is_ok());
    let three = json!({
        "exp": DATE.as_secs() + 60,
        "sub": "bob",
        "ncs": { "paths": ["/live/*"], "connections": 3 },
    });
    let mut guests: Vec<_> = (0..4).map(|_| visitor(&admission)).collect();
    let results = guests
        .iter_mut()
        .map(|guest| guest.present(now, token("a", &SECRET, &three)).is_ok());
    assert_eq!(
        results.collect::<Vec<_>>(),
        [true, true, true, false],
        "what the token says comes first"
    );
}

#[test]
fn the_slower_of_two_rates_counts() {
    let mut place = Place::new();
    place.config.address_bytes_per_second = Some(ByteSize(1000));
    let (admission, now) = (place.open(), now());
    let mut guest = visitor(&admission);
    guest.enter(now).unwrap();
    assert_eq!(
        guest.allowance(now.instant + Duration::from_secs(1)),
        Ok(1000)
    );
    let slow = json!({ "exp": DATE.as_secs() + 60, "ncs": { "paths": ["/live/*"], "rate": 100 } });
    guest.present(now, token("a", &SECRET, &slow)).unwrap();
    let at = Instant::now();
    assert_eq!(guest.allowance(at), Ok(100));
    guest.spend(at, 300);
    assert_eq!(guest.allowance(at), Err(at + Duration::from_secs(2)));
    let mut other = visitor(&admission);
    other.enter(now).unwrap();
    assert_eq!(
        other.allowance(at),
        Ok(700),
        "others of the address have what is left of its bytes"
    );
}

#[test]
fn half_of_an_addresss_places_are_for_those_who_have_proved_it() {
    let admission = open(&Config {
        address_connections_max: Some(4),
        ..Config::default()
    });
    let now = Instant::now();
    let spoofed: Vec<_> = (0..2)
        .map(|_| admission.address(now, HERE, false).unwrap())
        .collect();
    assert_eq!(
        admission.address(now, HERE, false).unwrap_err(),
        Crowded::Prove
    );
    let proven: Vec<_> = (0..2)
        .map(|_| admission.address(now, HERE, true).unwrap())
        .collect();
    assert_eq!(
        admission.address(now, HERE, true).unwrap_err(),
        Crowded::Full
    );
    assert!(
        admission
            .address(now, "127.0.0.2".parse().unwrap(), false)
            .is_ok()
    );
    drop((spoofed, proven));
    assert!(admission.address(now, HERE, false).is_ok());
}

#[tokio::test]
async fn keys_are_read_again_and_bad_ones_leave_the_old() {
    let (place, readiness, now) = (Place::new(), Readiness::new(), now());
    readiness.ready("server");
    let admission = place.open();
    let mut guest = visitor(&admission);
    assert!(guest.present(now, for_live(60)).unwrap().0);
    for bad in [
        "",
        "{\"keys\":[]}",
        "{\"keys\":[{\"kty\":\"oct\",\"k\":\"AA\"}]}",
    ] {
        std::fs::write(place.file(), bad).unwrap();
        admission.refresh(&readiness).await;
        assert!(allows(&guest.review(now).unwrap()), "{bad}");
    }
    std::fs::remove_file(place.file()).unwrap();
    admission.refresh(&readiness).await;
    assert!(allows(&guest.review(now).unwrap()) && readiness.status().0 == Status::Ready);
    let failed = admission
        .inner
        .metrics
        .reloads
        .with_label_values(&["failed"]);
    assert_eq!(failed.get(), 4);

    write(&place.file(), &[oct("a", &SECRET), oct("b", &[8; 32])]);
    admission.refresh(&readiness).await;
    let mut reviews = guest.reviews();
    reviews.changed().await.unwrap();
    assert!(
        allows(&guest.review(now).unwrap()),
        "both keys count while they overlap"
    );
    let claims = json!({ "exp": DATE.as_secs() + 60, "ncs": { "paths": ["/live/*"] } });
    assert!(
        visitor(&admission)
            .present(now, token("b", &[8; 32], &claims))
            .unwrap()
            .0
    );

    write(&place.file(), &[oct("b", &[8; 32])]);
    admission.refresh(&readiness).await;
    reviews.changed().await.unwrap();
    assert!(
        !allows(&guest.review(now).unwrap()),
        "a key that is gone takes its tokens along"
    );
    let taken = admission
        .inner
        .metrics
        .reloads
        .with_label_values(&["taken"]);
    assert_eq!((taken.get(), admission.inner.metrics.keys.get()), (2, 1));
    admission.refresh(&readiness).await;
    assert_eq!(taken.get(), 2, "nothing has changed");
}

/// Where an origin has its one file, and the file: there is none at first.
async fn origin() -> (String, Arc<Mutex<Option<String>>>) {
    let file = Arc::new(Mutex::new(None::<String>));
    let served = Arc::clone(&file);
    let answer = move || {
        let found = served.lock().unwrap().clone().ok_or(StatusCode::NOT_FOUND);
        async { found }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
    tokio::spawn(async {
        axum::serve(listener, Router::new().route("/jwks.json", get(answer))).await
    });
    (url, file)
}

#[tokio::test]
async fn keys_of_a_url_come_when_it_answers() {
    let (url, keys) = origin().await;
    let put = |text: String| *keys.lock().unwrap() = Some(text);
    let (readiness, now) = (Readiness::new(), now());
    readiness.ready("server");
    let admission = open(&Config {
        keys: Some(url.into()),
        ..Config::default()
    });
    admission.refresh(&readiness).await;
    assert_eq!(
        readiness.status().0,
        Status::NotReady,
        "{:?}",
        readiness.status()
    );
    let mut guest = visitor(&admission);
    assert!(!guest.present(now, for_live(60)).unwrap().0);
    put(json!({ "keys": [oct("a", &SECRET)] }).to_string());
    admission.refresh(&readiness).await;
    assert_eq!(readiness.status().0, Status::Ready);
    assert!(guest.present(now, for_live(60)).unwrap().0);
    put("no longer".to_owned());
    admission.refresh(&readiness).await;
    assert_eq!(readiness.status().0, Status::Ready, "the old set goes on");
    assert!(visitor(&admission).present(now, for_live(60)).unwrap().0);
}

#[test]
fn a_reload_takes_other_rules_whole_or_not_at_all() {
    let (place, now) = (Place::new(), now());
    let admission = place.open();
    let mut guest = visitor(&admission);
    guest.present(now, for_live(60)).unwrap();
    let missing = Config {
        keys: Some("/nonexistent".into()),
        ..place.config.clone()
    };
    assert!(matches!(admission.read(&missing), Err(Error::Keys(..))));
    let no_ca = Config {
        clients_ca: Some(place.file()),
        ..place.config.clone()
    };
    assert!(matches!(
        admission.read(&no_ca),
        Err(Error::Authorities(..))
    ));
    assert!(allows(&guest.review(now).unwrap()));
    admission.replace(
        admission
            .read(&Config {
                audience: Some("us".into()),
                ..place.config.clone()
            })
            .unwrap(),
    );
    assert!(
        !allows(&guest.review(now).unwrap()),
        "its token is for nobody in particular"
    );
    admission.replace(admission.read(&Config::default()).unwrap());
    assert_eq!(guest.review(now), Ok(Access::Free));
}

#[test]
fn other_addresses_than_loopback_need_admission_or_a_word() {
    let check = |config: &Config, address: &str| {
        config.check_listen(&["127.0.0.1:1".parse().unwrap(), address.parse().unwrap()])
    };
    let with_keys = Config {
        keys: Some("k".into()),
        ..Config::default()
    };
    let with_ca = Config {
        clients_ca: Some("c".into()),
        ..Config::default()
    };
    for address in [
        "0.0.0.0:4443",
        "[::]:4443",
        "192.0.2.1:4443",
        "[::ffff:192.0.2.1]:4443",
    ] {
        assert!(
            matches!(check(&Config::default(), address), Err(Error::Open(_))),
            "{address}"
        );
        assert!(
            check(
                &Config {
                    required: false,
                    ..with_keys.clone()
                },
                address
            )
            .is_err(),
            "nobody is kept out"
        );
        assert!(
            check(
                &Config {
                    insecure: true,
                    ..Config::default()
                },
                address
            )
            .is_ok()
        );
        assert!(check(&with_keys, address).is_ok() && check(&with_ca, address).is_ok());
    }
    for address in ["127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(check(&Config::default(), address), Ok(()), "{address}");
    }
}

#[derive(Debug)]
struct KeyOfLive(ncs_proto::integrity::signing::StreamKey);

impl ncs_proto::integrity::signing::StreamKeys for KeyOfLive {
    fn key_of(&self, stream: &str) -> Option<ncs_proto::integrity::signing::StreamKey> {
        (stream == "live").then_some(self.0)
    }
}

#[test]
fn a_ticket_admits_to_its_stream_at_its_peer_until_it_ends() {
    use ncs_proto::integrity::signing::SigningKey;

    let key = SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap();
    let tickets = Tickets {
        identity: [1; 32],
        keys: Arc::new(KeyOfLive(key.public())),
        served_max: None,
    };
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let admission = Admission::open_with(&Config::default(), Some(tickets), metrics).unwrap();
    let now = now();
    let mut guest = visitor(&admission);
    let refused = Access::Refused {
        until: now.instant + Config::default().grace,
    };
    assert_eq!(
        guest.enter(now),
        Ok(refused.clone()),
        "who serves by tickets serves nobody without"
    );
    let until = u64::try_from(now.date.as_millis()).unwrap() + 60_000;
    for (stream, until, identity) in [
        ("vod", until, 1),
        ("live", until, 2),
        ("live", until - 60_000, 1),
    ] {
        let ticket = key.ticket(stream, until, [identity; 32], [3; 8]);
        assert_eq!(
            guest.present_ticket(now, ticket),
            Ok((false, refused.clone())),
            "{stream} {identity}"
        );
    }
    let (counts, access) = guest
        .present_ticket(now, key.ticket("live", until, [1; 32], [3; 8]))
        .unwrap();
    assert!(counts && allows(&access) && !access.allows("/vod/1.ts"));
    let due = access.due().unwrap();
    assert!(
        due <= now.instant + Duration::from_secs(60) && due > now.instant + Duration::from_secs(59)
    );
    assert!(!allows(&guest.review(later(now, 61)).unwrap()));
    // Without a verifier of tickets none is accepted, and none opens what tokens protect.
    let mut guest = visitor(&Place::new().open());
    assert!(
        !guest
            .present_ticket(now, key.ticket("live", until, [1; 32], [3; 8]))
            .unwrap()
            .0
    );
}

#[test]
fn who_brings_no_ticket_takes_no_place_of_those_who_do() {
    use ncs_proto::integrity::signing::SigningKey;

    let key = SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap();
    let tickets = Tickets {
        identity: [1; 32],
        keys: Arc::new(KeyOfLive(key.public())),
        served_max: Some(2),
    };
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let admission = Admission::open_with(&Config::default(), Some(tickets), metrics).unwrap();
    let now = now();
    let mut crowd: Vec<_> = (0..10).map(|_| visitor(&admission)).collect();
    assert!(
        crowd
            .iter_mut()
            .all(|guest| guest.enter(now).is_ok_and(|access| !allows(&access)))
    );
    let until = u64::try_from(now.date.as_millis()).unwrap() + 60_000;
    let shows = |guest: &mut Visitor, nonce| {
        guest.present_ticket(now, key.ticket("live", until, [1; 32], [nonce; 8]))
    };
    let mut guests: Vec<_> = (0..3).map(|_| visitor(&admission)).collect();
    let shown: Vec<_> = guests
        .iter_mut()
        .zip(0..)
        .map(|(guest, nonce)| shows(guest, nonce).map(|(counts, _)| counts))
        .collect();
    assert_eq!(shown, [Ok(true), Ok(true), Err(Limited)]);
    guests.remove(0);
    assert!(
        shows(&mut guests[0], 1).is_ok_and(|(_, access)| allows(&access)),
        "who has a place keeps it"
    );
    assert!(
        shows(&mut guests[1], 2).is_ok_and(|(_, access)| allows(&access)),
        "one that has left makes room"
    );
}
