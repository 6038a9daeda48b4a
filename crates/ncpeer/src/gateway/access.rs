//! Access to the gateway: which host names it answers to, and which pages it serves.
//!
//! A page in a browser can send requests to loopback too. Two checks keep foreign pages out. The
//! **Host** must be loopback, the local address of the connection, or a configured name: if a
//! page's own name was made to resolve to this host (DNS rebinding), the browser treats the gateway
//! as the page's origin, but still sends that name as Host. The **Origin** of a page matters if the
//! gateway sends a credential to the server: then only pages of the gateway itself and of
//! configured origins are served, and only they may read (CORS). Without a credential any page may
//! read here what it could get from the server itself.
//!
//! Other users of the machine are not kept out: any process that can connect is served.
//!
//! No I/O here.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use ncs_net::host;
use url::Url;

use super::answer::{Failure, text};

/// The clients that a gateway answers.
#[derive(Debug)]
pub(super) struct Access {
    hosts: Vec<String>,
    pages: Pages,
}

#[derive(Debug)]
enum Pages {
    /// Every page.
    All,
    /// Pages of the gateway itself and of these origins.
    Own(Vec<String>),
}

/// Which pages of other origins may read the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reader {
    /// All pages.
    Any,
    /// Pages of this origin.
    Origin(HeaderValue),
    /// Only the gateway's own.
    Own,
}

impl Access {
    /// Accepts loopback, `hosts`, and pages of `origins`; without origins, all pages unless
    /// `has_credential`. Fails if a host or an origin could never match.
    pub(super) fn new(
        hosts: &[String],
        origins: &[String],
        has_credential: bool,
    ) -> Result<Self, String> {
        let hosts = hosts
            .iter()
            .map(|text| host::parse(text))
            .collect::<Result<_, _>>()?;
        let origins = origins
            .iter()
            .map(|text| parse_origin(text))
            .collect::<Result<Vec<_>, _>>()?;
        let is_open = if origins.is_empty() {
            !has_credential
        } else {
            origins.iter().any(|origin| origin == ALL)
        };
        Ok(Self {
            hosts,
            pages: if is_open {
                Pages::All
            } else {
                Pages::Own(origins)
            },
        })
    }

    /// Whether to answer a request that came to the address `local`, and who may read the answer.
    pub(super) fn check(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: IpAddr,
    ) -> Result<Reader, Failure> {
        let host = host::of(uri, headers).ok_or_else(|| {
            Failure::new(
                StatusCode::BAD_REQUEST,
                "the request needs exactly one valid Host header",
            )
        })?;
        if !self.is_own(&host, local) {
            let reason = format!(
                "the gateway does not accept the name {}; allow it with ncpeer gateway --host",
                host.host()
            );
            return Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, reason));
        }
        let Pages::Own(origins) = &self.pages else {
            return Ok(Reader::Any);
        };
        let foreign = "another page's request: the gateway shows a credential to the server, so \
                       that only its own page may read; ncpeer gateway --allow-origin allows \
                       another one";
        match headers.get(header::ORIGIN) {
            Some(origin) if is_of(origin, &host) => Ok(Reader::Own),
            Some(origin) if is_among(origin, origins) => Ok(Reader::Origin(origin.clone())),
            None if !is_embedded(headers) => Ok(Reader::Own),
            _ => Err(Failure::new(StatusCode::FORBIDDEN, foreign)),
        }
    }

    fn is_own(&self, authority: &Authority, local: IpAddr) -> bool {
        host::is_own(authority, &self.hosts, |address| {
            address.is_loopback() || address == local
        })
    }
}

/// The origin of pages as browsers send it: without path and default port.
pub fn parse_origin(text: &str) -> Result<String, String> {
    if text == ALL {
        return Ok(ALL.to_owned());
    }
    let is_origin = |url: &Url| {
        let is_bare = url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && !text.contains('@');
        matches!(url.scheme(), "http" | "https") && is_bare
    };
    match Url::parse(text) {
        Ok(url) if is_origin(&url) => Ok(url.origin().ascii_serialization()),
        _ => Err(
            "expected a scheme and a host, such as https://player.example, or * for all".to_owned(),
        ),
    }
}

/// Whether an origin is that of the gateway's own pages, possibly behind a TLS proxy.
fn is_of(origin: &HeaderValue, host: &Authority) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let place = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    place.is_some_and(|place| place.eq_ignore_ascii_case(host.as_str()))
}

fn is_among(origin: &HeaderValue, origins: &[String]) -> bool {
    origin
        .to_str()
        .is_ok_and(|origin| origins.iter().any(|one| origin.eq_ignore_ascii_case(one)))
}

/// Whether a browser reports that another site's page embeds the object: `<video src>` and the like
/// send no Origin. A followed link is not embedding; other programs report nothing.
fn is_embedded(headers: &HeaderMap) -> bool {
    let of_another = matches!(text(headers, FETCH_SITE), Some("cross-site" | "same-site"));
    let is_visit = text(headers, FETCH_MODE) == Some("navigate")
        && text(headers, FETCH_DEST) == Some("document");
    of_another && !is_visit
}

/// Stands for all origins.
const ALL: &str = "*";
const FETCH_SITE: header::HeaderName = header::HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: header::HeaderName = header::HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: header::HeaderName = header::HeaderName::from_static("sec-fetch-dest");

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 1, 5));

    fn ask(access: &Access, given: &[(&'static str, &str)]) -> Result<Reader, u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        access
            .check(&"/live/1.ts".parse().unwrap(), &headers, HERE)
            .map_err(|failure| failure.status.as_u16())
    }

    #[test]
    fn loopback_the_own_address_and_configured_names_are_answered() {
        let access = Access::new(&["TV.example".to_owned()], &[], false).unwrap();
        let own = [
            "127.0.0.1:8080",
            "127.8.9.1",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "localhost:1",
            "LOCALHOST.",
            "a.localhost",
        ];
        for host in own
            .iter()
            .chain(&["192.168.1.5:8080", "tv.example", "TV.example.:80"])
        {
            assert_eq!(ask(&access, &[("host", host)]), Ok(Reader::Any), "{host}");
        }
        for host in [
            "evil.example",
            "192.168.1.6",
            "10.0.0.1:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::2]",
        ] {
            assert_eq!(ask(&access, &[("host", host)]), Err(421), "{host}");
        }
    }

    #[test]
    fn a_request_has_one_host() {
        let access = Access::new(&[], &[], false).unwrap();
        assert_eq!(ask(&access, &[]), Err(400));
        assert_eq!(
            ask(&access, &[("host", "localhost"), ("host", "localhost")]),
            Err(400)
        );
        for host in ["a b", "localhost:65536", "[::1]:99999999"] {
            assert_eq!(ask(&access, &[("host", host)]), Err(400), "{host}");
        }
        for host in ["localhost:65535", "localhost:", "[::1]:0"] {
            assert_eq!(ask(&access, &[("host", host)]), Ok(Reader::Any), "{host}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("host", "localhost".parse().unwrap());
        let absolute = "http://evil.example/live/1.ts".parse().unwrap();
        assert_eq!(
            access.check(&absolute, &headers, HERE).unwrap_err().status,
            StatusCode::MISDIRECTED_REQUEST
        );
    }

    #[test]
    fn with_a_credential_only_the_gateways_own_pages_and_those_asked_for_are_served() {
        let host = ("host", "localhost:8080");
        let (own, other) = (
            ("origin", "http://localhost:8080"),
            ("origin", "https://player.example"),
        );
        let open = Access::new(&[], &[], false).unwrap();
        assert_eq!(ask(&open, &[host, other]), Ok(Reader::Any));
        let closed = Access::new(&[], &[], true).unwrap();
        assert_eq!(
            (ask(&closed, &[host]), ask(&closed, &[host, own])),
            (Ok(Reader::Own), Ok(Reader::Own))
        );
        for origin in [
            "https://player.example",
            "http://localhost:3000",
            "null",
            "http://localhost:8080.evil.example",
            "",
        ] {
            assert_eq!(
                ask(&closed, &[host, ("origin", origin)]),
                Err(403),
                "{origin}"
            );
        }
        let one = Access::new(&[], &["https://Player.example/".to_owned()], true).unwrap();
        assert_eq!(
            ask(&one, &[host, other]),
            Ok(Reader::Origin("https://player.example".parse().unwrap()))
        );
        assert_eq!(
            ask(&one, &[host, ("origin", "https://other.example")]),
            Err(403)
        );
        assert_eq!(
            ask(
                &Access::new(&[], &["*".to_owned()], true).unwrap(),
                &[host, other]
            ),
            Ok(Reader::Any)
        );
        let chosen = Access::new(&[], &["https://other.example".to_owned()], false).unwrap();
        assert_eq!(
            ask(&chosen, &[host, other]),
            Err(403),
            "a list holds without a credential, too"
        );
    }

    #[test]
    fn with_a_credential_nothing_is_embedded_in_other_pages() {
        let closed = Access::new(&[], &[], true).unwrap();
        let ask = |site, mode, dest| {
            let fetch = [
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", dest),
            ];
            ask(&closed, &[&[("host", "localhost")], &fetch[..]].concat())
        };
        assert_eq!(ask("cross-site", "no-cors", "video"), Err(403));
        assert_eq!(ask("same-site", "no-cors", "video"), Err(403));
        assert_eq!(ask("cross-site", "navigate", "iframe"), Err(403));
        assert_eq!(ask("cross-site", "navigate", "document"), Ok(Reader::Own));
        assert_eq!(ask("same-origin", "no-cors", "video"), Ok(Reader::Own));
        assert_eq!(ask("none", "navigate", "document"), Ok(Reader::Own));
    }

    #[test]
    fn hosts_and_origins_match_however_they_are_written() {
        let texts = |text: &str| vec![text.to_owned()];
        for (given, host) in [
            ("tv:8080", "tv"),
            ("TV.example.:8080", "tv.example:80"),
            ("10.0.0.1:8080", "10.0.0.1"),
            ("[2001:DB8::1]:8080", "[2001:db8::1]:80"),
            ("2001:db8:0::1", "[2001:db8::1]"),
        ] {
            let access = Access::new(&texts(given), &[], false).unwrap();
            assert_eq!(ask(&access, &[("host", host)]), Ok(Reader::Any), "{given}");
        }
        for (given, origin) in [
            ("https://a.example:443", "https://a.example"),
            ("http://A.example:80/", "http://a.example"),
            ("https://a.example:8443", "https://a.example:8443"),
            ("https://bücher.example", "https://xn--bcher-kva.example"),
        ] {
            let access = Access::new(&[], &texts(given), true).unwrap();
            let answer = ask(&access, &[("host", "localhost"), ("origin", origin)]);
            assert_eq!(
                answer,
                Ok(Reader::Origin(origin.parse().unwrap())),
                "{given}"
            );
        }
        for host in [
            "",
            "*",
            "*.example",
            "http://tv",
            "tv/",
            "me@tv",
            "bücher.example",
            ":8080",
        ] {
            assert!(Access::new(&texts(host), &[], false).is_err(), "{host}");
        }
        for origin in [
            "",
            "a.example",
            "ftp://a.example",
            "https://a.example/x",
            "https://me@a.example",
            "https://",
            "null",
        ] {
            assert!(Access::new(&[], &texts(origin), false).is_err(), "{origin}");
        }
    }
}
