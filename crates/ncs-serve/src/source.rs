//! Documents that are read again and again: each in a file, or at a URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ncs_net::files;
use ncs_net::secret::{Secret, is_http, redacted};
use reqwest::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use reqwest::{Client, StatusCode};
use url::{Host, ParseError, Url};

/// The maximum time to fetch a document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest validator that is kept of a document.
const ETAG_BYTES_MAX: usize = 256;

/// The place of a document, and the most bytes that it may have.
#[derive(Debug, Clone)]
pub struct Source {
    place: Place,
    bytes_max: usize,
}

#[derive(Debug, Clone)]
enum Place {
    File(PathBuf),
    Url(Secret<Url>, Client),
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its content.
    pub bytes: Vec<u8>,
    /// Its version, if its server has named one. A file has none.
    pub version: Option<Version>,
}

/// What a server calls the version of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(HeaderValue);

/// A place as a setting names it.
#[derive(Clone, PartialEq, Eq)]
pub enum Named {
    /// A file.
    File(PathBuf),
    /// A URL of the scheme http or https. It may hold credentials.
    Url(Url),
}

/// Shows no URL, which may hold credentials.
impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Url(_) => f.write_str("Url"),
        }
    }
}

impl Named {
    /// A URL if it looks like one, otherwise a file. The error does not quote the text, which may
    /// hold credentials.
    pub fn parse(text: &str) -> Result<Self, String> {
        match Url::parse(text) {
            Ok(url) if is_http(&url) => Ok(Self::Url(url)),
            Ok(_) => Err(
                "expected an http or https URL or a path: give the full path of a file \
                          that has `:` in its name"
                    .into(),
            ),
            Err(ParseError::RelativeUrlWithoutBase) if !text.contains("://") => {
                Ok(Self::File(text.into()))
            }
            Err(error) => Err(format!("not a URL: {error}")),
        }
    }

    /// Whether an attacker on the path could replace the document.
    pub fn is_open_to_the_network(&self) -> bool {
        let Self::Url(url) = self else { return false };
        let is_here = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        url.scheme() == "http" && !is_here
    }
}

impl Source {
    /// The document at a place, of at most this many bytes.
    pub fn new(named: Named, bytes_max: usize) -> Result<Self, String> {
        let place = match named {
            Named::File(path) => Place::File(path),
            Named::Url(url) => {
                // Only the first provider of a process is installed; an existing one is as good.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client = Client::builder()
                    .redirect(reqwest::redirect::Policy::none())
                    .no_proxy()
                    .timeout(FETCH_TIMEOUT)
                    .user_agent(concat!("ncserverd/", env!("CARGO_PKG_VERSION")))
                    .build();
                Place::Url(Secret::new(url), client.map_err(|error| error.to_string())?)
            }
        };
        Ok(Self { place, bytes_max })
    }

    /// Whether it is at a URL, and costs another machine work.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, Place::Url(..))
    }

    /// The content of a file; `None` for a URL.
    pub fn read(&self) -> Option<Result<Vec<u8>, String>> {
        match &self.place {
            Place::File(path) => Some(read(path, self.bytes_max)),
            Place::Url(..) => None,
        }
    }

    /// The content, from a file or a URL.
    pub async fn fetch(&self) -> Result<Vec<u8>, String> {
        let fetched = self.fetch_unless(None).await?;
        fetched
            .map(|document| document.bytes)
            .ok_or_else(|| format!("status {}", StatusCode::NOT_MODIFIED.as_u16()))
    }

    /// The document; `None` if its server says that it still has this version.
    pub async fn fetch_unless(&self, known: Option<&Version>) -> Result<Option<Document>, String> {
        let (url, client) = match &self.place {
            Place::File(path) => {
                return Ok(Some(Document {
                    bytes: read(path, self.bytes_max)?,
                    version: None,
                }));
            }
            Place::Url(url, client) => (url.expose().clone(), client),
        };
        let fail = |error: reqwest::Error| redacted(&error.without_url().to_string());
        let mut request = client.get(url);
        if let Some(Version(version)) = known {
            request = request.header(IF_NONE_MATCH, version);
        }
        let mut response = request.send().await.map_err(fail)?;
        if known.is_some() && response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        if !response.status().is_success() {
            return Err(format!("status {}", response.status().as_u16()));
        }
        let version = response.headers().get(ETAG);
        let version = version.filter(|version| version.len() <= ETAG_BYTES_MAX);
        let version = version.cloned().map(Version);
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(fail)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > self.bytes_max {
                return Err(format!("more than {} bytes", self.bytes_max));
            }
        }
        Ok(Some(Document { bytes, version }))
    }
}

/// Reads a file of at most this size.
pub(crate) fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    files::read(path, bytes_max as u64).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::HeaderMap;
    use axum::routing::get;

    use super::*;

    /// A document with a validator, at a URL, and how often it was sent.
    async fn served(text: &'static str, etag: &'static str) -> (Url, Arc<AtomicUsize>) {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let answer = move |headers: HeaderMap| async move {
            let tag = [(ETAG, etag)];
            if headers
                .get(IF_NONE_MATCH)
                .is_some_and(|known| known == etag)
            {
                return (StatusCode::NOT_MODIFIED, tag, "");
            }
            count.fetch_add(1, Ordering::Relaxed);
            (StatusCode::OK, tag, text)
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/list", get(answer));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (format!("http://{address}/list").parse().unwrap(), sent)
    }

    #[tokio::test]
    async fn a_document_that_is_known_is_not_sent_again() {
        let (url, sent) = served("text", "\"1\"").await;
        let source = Source::new(Named::Url(url), 4).unwrap();
        let document = source.fetch_unless(None).await.unwrap().unwrap();
        assert_eq!(document.bytes, b"text");
        let version = document.version.unwrap();
        for _ in 0..3 {
            assert_eq!(source.fetch_unless(Some(&version)).await, Ok(None));
        }
        assert_eq!(sent.load(Ordering::Relaxed), 1);
        let other = Version(HeaderValue::from_static("\"0\""));
        assert!(source.fetch_unless(Some(&other)).await.unwrap().is_some());
        assert_eq!(source.fetch().await.unwrap(), b"text");
    }

    #[tokio::test]
    async fn a_document_has_bounds() {
        let (url, _) = served("longer", "\"1\"").await;
        let source = Source::new(Named::Url(url.clone()), 5).unwrap();
        assert_eq!(source.fetch().await.unwrap_err(), "more than 5 bytes");
        let elsewhere = url.join("/other").unwrap();
        let source = Source::new(Named::Url(elsewhere), 5).unwrap();
        assert_eq!(source.fetch().await.unwrap_err(), "status 404");
    }

    #[test]
    fn files_and_urls_are_told_apart() {
        assert_eq!(
            Named::parse("/etc/keys.json"),
            Ok(Named::File("/etc/keys.json".into()))
        );
        assert_eq!(
            Named::parse("http.json"),
            Ok(Named::File("http.json".into()))
        );
        assert_eq!(Named::parse("/a:b@c"), Ok(Named::File("/a:b@c".into())));
        for (text, open) in [
            ("http:me:pw@issuer.example/jwks.json", true),
            ("https://issuer.example/jwks.json", false),
            ("http://issuer.example/jwks.json", true),
            ("http://127.0.0.1:8080/", false),
            ("http://[::1]/", false),
            ("http://localhost/", false),
            ("http://10.0.0.1/", true),
        ] {
            let named = Named::parse(text).unwrap();
            assert!(
                matches!(named, Named::Url(_)) && named.is_open_to_the_network() == open,
                "{text}"
            );
        }
        for text in [
            "ftp://issuer.example/",
            "https://",
            "https:",
            "me:pw@issuer.example",
            "https://me:pw#a@issuer.example/",
        ] {
            let reason = Named::parse(text).map(|_| ()).unwrap_err();
            assert!(!reason.contains("pw"), "{text}: {reason}");
        }
    }
}
