//! Who may see the page for operators, and by which host name.
//!
//! On a loopback listener every path needs a Host of this machine, so that no site can read
//! anything by a name of its own (`host`). Elsewhere only the page needs it: Prometheus and
//! Kubernetes reach `/metrics`, `/healthz` and `/readyz` by a service's name, and send no
//! credential. There the page exists only with TLS and a credential.
//!
//! A wrong password costs a try. Each group of client addresses has [`TRIES_MAX`], and gets one
//! more a second. The groups are a table of fixed size; a random key spreads addresses over it, so
//! that nobody can choose whom to lock out.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::telemetry::{Config, Error};
use crate::{host, page, secret};

/// Paths that answer without a credential.
const OPEN: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

#[derive(Debug)]
pub(super) struct Guard {
    is_loopback: bool,
    has_tls: bool,
    hosts: Vec<String>,
    credential: ArcSwapOption<Credential>,
    tries: Tries,
}

impl Guard {
    /// Reads the credential.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let hosts = config.hosts.iter().map(|name| host::parse(name));
        let guard = Self {
            is_loopback: config.listen.ip().to_canonical().is_loopback(),
            has_tls: config.certificate.is_some() && config.key.is_some(),
            hosts: hosts.collect::<Result<_, _>>().map_err(Error::Host)?,
            credential: ArcSwapOption::empty(),
            tries: Tries::new(),
        };
        if let Some(path) = &config.credential {
            guard.reload(path)?;
        }
        Ok(guard)
    }

    /// Reads the credential again. An unusable one changes nothing.
    pub(super) fn reload(&self, path: &Path) -> Result<(), Error> {
        let read = Credential::read(path).map_err(Error::Credential)?;
        self.credential.store(Some(read.into()));
        Ok(())
    }

    /// The answer to a request that goes no further.
    pub(super) fn refuse<B>(
        &self,
        request: &Request<B>,
        client: IpAddr,
        now: Instant,
    ) -> Option<Response> {
        let (path, headers) = (request.uri().path(), request.headers());
        let is_open = OPEN.contains(&path);
        if (self.is_loopback || !is_open)
            && let Some(refusal) = self.refuse_host(request)
        {
            return Some(refusal);
        }
        if is_open {
            return None;
        }
        let credential = self.credential.load();
        let is_shown = self.is_loopback || (self.has_tls && credential.is_some());
        if !is_shown {
            return Some(page::sentence(StatusCode::NOT_FOUND, ABSENT));
        }
        // A link of another site may lead to the page, but none of its requests elsewhere.
        if path != "/" && page::is_of_another(headers) {
            let text = "a request of another site's page";
            return Some(page::sentence(StatusCode::FORBIDDEN, text));
        }
        let credential = credential.as_ref()?;
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return Some(unauthorized("the page needs user and password"));
        };
        if !self.tries.has(client, now) {
            let text = "too many wrong passwords: wait some seconds";
            let mut response = page::sentence(StatusCode::TOO_MANY_REQUESTS, text);
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
            return Some(response);
        }
        if credential.is(given) {
            return None;
        }
        self.tries.take(client, now);
        Some(unauthorized("wrong user or password"))
    }

    fn refuse_host<B>(&self, request: &Request<B>) -> Option<Response> {
        // No browser speaks HTTP/1.0, and a health check in a script may.
        let is_old = request.version() == Version::HTTP_10;
        if is_old && !request.headers().contains_key(header::HOST) {
            return None;
        }
        let Some(host) = host::of(request.uri(), request.headers()) else {
            let text = "the request needs exactly one valid Host header";
            return Some(page::sentence(StatusCode::BAD_REQUEST, text));
        };
        if host::is_own(&host, &self.hosts, |_| true) {
            return None;
        }
        let text = "this Host is neither an address nor localhost: if it is a name of this \
                    server, add it to the setting telemetry.hosts";
        Some(page::sentence(StatusCode::MISDIRECTED_REQUEST, text))
    }
}

fn unauthorized(text: &str) -> Response<Body> {
    let mut response = page::sentence(StatusCode::UNAUTHORIZED, text);
    response.headers_mut().insert(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Basic realm=\"ncserverd\", charset=\"UTF-8\""),
    );
    response
}

/// A user and a password, kept as a keyed hash. Comparing two takes the same time wherever they
/// differ.
#[derive(Debug)]
pub(super) struct Credential {
    key: [u8; 32],
    hash: blake3::Hash,
}

impl Credential {
    /// Reads a file with one line, `user:password`.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = secret::read(path)?;
        let fail = |reason: &str| Err(format!("{}: {reason}", path.display()));
        let text = text.expose();
        if text.chars().any(char::is_control) {
            return fail("it has more than one line, or control characters");
        }
        match text.split_once(':') {
            Some((user, password)) if !user.is_empty() && !password.is_empty() => {}
            _ => return fail("it is not `user:password`"),
        }
        let key = rand::random();
        let hash = blake3::keyed_hash(&key, text.as_bytes());
        Ok(Self { key, hash })
    }

    /// Whether a header `Authorization` has it.
    fn is(&self, given: &HeaderValue) -> bool {
        let given = given.as_bytes();
        let Some((scheme, coded)) = given.split_at_checked(BASIC.len()) else {
            return false;
        };
        // The decoder allocates three quarters of a header, whose length hyper bounds.
        scheme.eq_ignore_ascii_case(BASIC)
            && STANDARD
                .decode(coded.trim_ascii())
                .is_ok_and(|text| blake3::keyed_hash(&self.key, &text) == self.hash)
    }
}

/// The tries that are left.
#[derive(Debug)]
struct Tries {
    key: RandomState,
    begun: Instant,
    /// For each group, when it will have all its tries again, since `begun`.
    full_at: Mutex<Box<[Duration; GROUPS]>>,
}

impl Tries {
    fn new() -> Self {
        Self {
            key: RandomState::new(),
            begun: Instant::now(),
            full_at: Mutex::new(Box::new([Duration::ZERO; GROUPS])),
        }
    }

    fn has(&self, client: IpAddr, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.begun);
        let full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        full_at[self.group(client)].saturating_sub(now) <= (TRIES_MAX - 1) * TRY_EVERY
    }

    fn take(&self, client: IpAddr, now: Instant) {
        let now = now.saturating_duration_since(self.begun);
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = &mut full_at[self.group(client)];
        *full_at = (*full_at).max(now) + TRY_EVERY;
    }

    fn group(&self, client: IpAddr) -> usize {
        // Whoever has one address of IPv6 has all of its network's.
        let network = match client {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        usize::try_from(self.key.hash_one(network) % GROUPS as u64).unwrap_or_default()
    }
}

const BASIC: &[u8] = b"basic ";
const ABSENT: &str = "at an address other than loopback the page for operators is shown only if \
                      the settings telemetry.certificate, telemetry.key and telemetry.credential \
                      are set; /metrics, /healthz and /readyz are here";
const GROUPS: usize = 1024;
const TRIES_MAX: u32 = 10;
const TRY_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn guard(listen: &str, credential: Option<&str>, certificate: bool) -> Guard {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credential");
        let credential = credential.map(|text| {
            std::fs::write(&file, text).unwrap();
            file.clone()
        });
        Guard::open(&Config {
            listen: listen.parse().unwrap(),
            hosts: vec!["ops.example".into()],
            certificate: certificate.then(|| "unread".into()),
            key: certificate.then(|| "unread".into()),
            credential,
            ..Config::default()
        })
        .unwrap()
    }

    /// The status of a refusal.
    fn ask(guard: &Guard, path: &str, headers: &[(&'static str, &str)]) -> Option<u16> {
        ask_at(guard, path, headers, Instant::now())
    }

    fn ask_at(
        guard: &Guard,
        path: &str,
        headers: &[(&'static str, &str)],
        now: Instant,
    ) -> Option<u16> {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let refusal = guard.refuse(&request.body(()).unwrap(), CLIENT, now);
        refusal.map(|response| response.status().as_u16())
    }

    fn basic(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn on_loopback_every_path_needs_an_own_host() {
        let guard = guard("127.0.0.1:9443", None, false);
        for path in ["/", "/updates", "/metrics", "/healthz", "/readyz", "/none"] {
            for own in ["127.0.0.1:9443", "localhost", "[::1]:1", "ops.example"] {
                assert_eq!(ask(&guard, path, &[("host", own)]), None, "{path} {own}");
            }
            let evil = [("host", "evil.example:9443")];
            assert_eq!(ask(&guard, path, &evil), Some(421), "{path}");
            assert_eq!(ask(&guard, path, &[]), Some(400), "{path}");
            let script = Request::builder().uri(path).version(Version::HTTP_10);
            let script = script.body(()).unwrap();
            assert!(guard.refuse(&script, CLIENT, Instant::now()).is_none());
        }
    }

    #[test]
    fn elsewhere_only_the_page_needs_an_own_host_and_a_credential() {
        for (credential, certificate) in [(None, true), (Some("a:b"), false), (None, false)] {
            let guard = guard("0.0.0.0:9443", credential, certificate);
            let by_address = [("host", "10.0.0.1:9443"), ("authorization", &basic("a:b"))];
            assert_eq!(ask(&guard, "/", &by_address), Some(404));
            assert_eq!(ask(&guard, "/updates", &by_address), Some(404));
        }
        let guard = guard("0.0.0.0:9443", Some("me:p:w\n"), true);
        for path in OPEN {
            assert_eq!(ask(&guard, path, &[("host", "ncserverd.svc")]), None);
            assert_eq!(ask(&guard, path, &[]), None);
        }
        let host = ("host", "ops.example");
        assert_eq!(ask(&guard, "/", &[("host", "evil.example")]), Some(421));
        assert_eq!(ask(&guard, "/", &[host]), Some(401));
        for wrong in [
            &basic("me:p:x"),
            &basic("me:p:w\n"),
            &basic(""),
            "Basic ",
            "Basic ???",
            "Bearer x",
            "B",
        ] {
            let asked = ask(&guard, "/updates", &[host, ("authorization", wrong)]);
            assert_eq!(asked, Some(401), "{wrong}");
        }
        let right = basic("me:p:w").replace("Basic", "bAsIc");
        assert_eq!(ask(&guard, "/", &[host, ("authorization", &right)]), None);
    }

    #[test]
    fn a_credential_is_needed_on_loopback_too_where_there_is_one() {
        let guard = guard("[::1]:0", Some("me:pw"), false);
        let host = ("host", "localhost");
        assert_eq!(ask(&guard, "/", &[host]), Some(401));
        assert_eq!(ask(&guard, "/metrics", &[host]), None);
        let right = ("authorization", &basic("me:pw")[..]);
        assert_eq!(ask(&guard, "/", &[host, right]), None);
    }

    #[test]
    fn wrong_passwords_are_limited() {
        let guard = guard("127.0.0.1:0", Some("me:pw"), false);
        let now = Instant::now();
        let (wrong, right) = (basic("me:no"), basic("me:pw"));
        let ask = |given: &str, seconds| {
            let headers = [("host", "localhost"), ("authorization", given)];
            ask_at(&guard, "/", &headers, now + Duration::from_secs(seconds))
        };
        for _ in 0..TRIES_MAX {
            assert_eq!(ask(&wrong, 0), Some(401));
        }
        for _ in 0..1000 {
            assert_eq!(ask(&wrong, 0), Some(429));
        }
        assert_eq!(ask(&right, 0), Some(429), "it is not even looked at");
        assert_eq!(ask(&wrong, 1), Some(401), "one more a second");
        assert_eq!(ask(&right, 1), Some(429));
        assert_eq!(ask(&right, 2), None);
    }

    #[test]
    fn other_sites_get_the_page_by_a_link_only() {
        let guard = guard("127.0.0.1:0", None, false);
        let host = ("host", "localhost");
        for site in ["cross-site", "same-site"] {
            let site = ("sec-fetch-site", site);
            assert_eq!(ask(&guard, "/", &[host, site]), None);
            assert_eq!(ask(&guard, "/updates", &[host, site]), Some(403));
        }
        for site in ["same-origin", "none"] {
            let site = ("sec-fetch-site", site);
            assert_eq!(ask(&guard, "/updates", &[host, site]), None);
        }
    }

    #[test]
    fn unusable_credentials_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credential");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Credential::read(&file).map(drop)
        };
        assert!(read("me:hunter2\r\n").is_ok());
        for text in [
            "",
            "\n",
            "hunter2",
            ":hunter2",
            "me:",
            "me:hunter2\nme:x",
            "me:\thunter2",
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains("credential") && !error.contains("hunter2"),
                "{error}"
            );
        }
        let gone = folder.path().join("none");
        assert!(Credential::read(&gone).unwrap_err().contains("none"));
    }
}
