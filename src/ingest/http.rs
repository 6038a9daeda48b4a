//! Objects of an origin over HTTP(S).
//!
//! Redirects are followed here and not by the client library, because the operator decides where
//! they may lead and which headers are sent: the configured headers and `Host` are for the origin
//! only. Bodies are read in pieces up to a limit; an announced length allocates nothing. If a
//! length or chunks frame a body, the library reports an early end. HTTP/1 bodies that end with the
//! connection are refused, because their end cannot be told from a truncation.
//!
//! Compression is declined: blocks are combined from the bytes of the object, and ranges count
//! those.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Version};
use tokio::sync::mpsc;
use url::Url;

use super::complain;
use super::metrics::SourceMetrics;
use super::{BoxFuture, Change, Config, Error, Fetch, Fetched, Object, Source, Validators, Want};
use crate::secret::{Secret, redacted, redacted_path};
use crate::telemetry::quiet::RateLimited;

/// A stream's settings for its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The URL of the stream's top; ends with `/`.
    pub base: Secret<Url>,
    /// The `Host` to send instead of the URL's.
    pub host: Option<String>,
    /// Headers for every request.
    pub headers: BTreeMap<String, Secret<String>>,
    /// Hosts to which redirects may lead besides the origin: `name`, or `name:port` for another
    /// than the default port.
    pub redirect_hosts: Vec<String>,
    /// The maximum time of a fetch, including retries.
    pub timeout: Duration,
}

/// Why a source cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A header's name or value is invalid.
    #[error("`{0}` is not a valid HTTP header: {1}")]
    Header(String, String),
    /// The client library fails.
    #[error("cannot set up the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// An HTTP source. Connections stay open between fetches.
#[derive(Debug)]
pub struct Http {
    client: Client,
    origin: Origin,
    /// The origin's URL without credentials.
    base: Url,
    complaints: RateLimited<(&'static str, u16)>,
    headers: HeaderMap,
    config: Config,
    metrics: SourceMetrics,
}

impl Http {
    /// Creates the client, without connecting.
    pub fn open(
        origin: Origin,
        config: &Config,
        metrics: SourceMetrics,
    ) -> Result<Self, OpenError> {
        // Only the first provider of a process is installed; an existing one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(config.connect_timeout)
            .read_timeout(config.read_timeout)
            .user_agent(concat!("ncserverd/", env!("CARGO_PKG_VERSION")));
        if origin.host.is_some() {
            // HTTP/2 always sends the URL's authority, whatever `Host` says.
            client = client.http1_only();
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &origin.headers {
            let fail = |error: String| OpenError::Header(name.clone(), error);
            let key =
                HeaderName::try_from(name.as_str()).map_err(|error| fail(error.to_string()))?;
            let mut value = HeaderValue::try_from(value.expose().as_str())
                .map_err(|error| fail(error.to_string()))?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        if let Some(host) = &origin.host {
            let value = HeaderValue::try_from(host.as_str())
                .map_err(|error| OpenError::Header("host".into(), error.to_string()))?;
            headers.insert(header::HOST, value);
        }
        let mut base = origin.base.expose().clone();
        // Cannot fail for a URL with a host.
        let _ = base.set_username("").and_then(|()| base.set_password(None));
        let complaints = RateLimited::new(COMPLAIN_EVERY);
        Ok(Self {
            client: client.build()?,
            base,
            complaints,
            origin,
            headers,
            config: config.clone(),
            metrics,
        })
    }

    /// Sends one HEAD request for the top of the stream, follows redirects, and returns the status.
    pub async fn look(&self) -> Result<u16, Error> {
        let head = |url: &Url| self.client.head(url.clone()).headers(self.own_headers(url));
        Ok(self
            .follow(self.origin.base.expose(), head)
            .await?
            .status()
            .as_u16())
    }

    async fn fetch_with_retries(&self, fetch: &Fetch) -> Result<Fetched, Error> {
        let url = fetch
            .path
            .to_url(self.origin.base.expose())
            .ok_or_else(|| Error::Protocol("the path makes no URL".into()))?;
        let attempts = (|| self.attempt(fetch, &url))
            .retry(
                ExponentialBuilder::default()
                    .with_min_delay(self.config.retry_delay)
                    .with_max_times(self.config.retries.into())
                    .with_jitter(),
            )
            .when(|error| error.is_transient() && !matches!(error, Error::Busy(..)))
            .notify(|error, _| {
                tracing::debug!(
                    path = redacted_path(fetch.path.as_str()),
                    %error,
                    "asking the origin again",
                );
                self.metrics.retries.inc();
            });
        tokio::time::timeout(self.origin.timeout, attempts)
            .await
            .unwrap_or(Err(Error::Timeout))
    }

    async fn attempt(&self, fetch: &Fetch, url: &Url) -> Result<Fetched, Error> {
        let response = self.request(fetch, url).await?;
        match (response.status(), &fetch.want) {
            (StatusCode::NOT_MODIFIED, _) if fetch.known.is_some() => {
                self.metrics.not_modified.inc();
                Ok(Fetched::NotModified)
            }
            (StatusCode::OK, Want::Whole(max)) => self.whole(response, *max).await,
            (StatusCode::OK, Want::Head(max)) => self.head(response, *max).await,
            (StatusCode::OK, Want::Part(range)) if range.start == 0 => {
                self.prefix(response, range.end, false).await
            }
            (StatusCode::OK, Want::Listed(range)) if range.start == 0 => {
                self.prefix(response, range.end, true).await
            }
            (StatusCode::OK, Want::Part(_) | Want::Listed(_)) => {
                // An origin that supports ranges sends the whole object if the version has changed.
                let now = Description::of(&response).validators;
                let is_other = fetch
                    .part_of
                    .as_ref()
                    .is_some_and(|before| before.strong().is_some() && *before != now);
                Err(if is_other {
                    Error::Changed
                } else {
                    Error::NoRanges
                })
            }
            (StatusCode::PARTIAL_CONTENT, Want::Part(range)) => {
                self.part(response, range, false).await
            }
            (StatusCode::PARTIAL_CONTENT, Want::Listed(range)) => {
                self.part(response, range, true).await
            }
            (StatusCode::RANGE_NOT_SATISFIABLE, _) => Err(Error::OutOfRange(
                content_range(&response).and_then(|range| range.total),
            )),
            (StatusCode::NOT_FOUND | StatusCode::GONE, _) => Err(Error::NotFound),
            (
                StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::PROXY_AUTHENTICATION_REQUIRED,
                _,
            ) => Err(Error::Forbidden(response.status().as_u16())),
            (StatusCode::TOO_MANY_REQUESTS, _) => Err(Error::Busy(
                response.status().as_u16(),
                retry_after(&response),
            )),
            (StatusCode::SERVICE_UNAVAILABLE, _) if retry_after(&response).is_some() => Err(
                Error::Busy(response.status().as_u16(), retry_after(&response)),
            ),
            (StatusCode::REQUEST_TIMEOUT, _) => Err(Error::Unavailable(response.status().as_u16())),
            (status, _) if status.is_client_error() => Err(Error::Refused(status.as_u16())),
            (status, _) if status.is_server_error() => Err(Error::Unavailable(status.as_u16())),
            (status, _) => Err(Error::Protocol(format!("status {}", status.as_u16()))),
        }
    }

    async fn request(&self, fetch: &Fetch, url: &Url) -> Result<Response, Error> {
        self.follow(url, |url| {
            self.client
                .get(url.clone())
                .headers(self.headers_for(fetch, url))
        })
        .await
    }

    /// Sends the request built for a URL, and follows allowed redirects.
    async fn follow(
        &self,
        url: &Url,
        request: impl Fn(&Url) -> RequestBuilder,
    ) -> Result<Response, Error> {
        let mut url = url.clone();
        for _ in 0..=self.config.redirects_max {
            self.metrics.requests.inc();
            let response = request(&url)
                .send()
                .await
                .map_err(|error| request_error(&error))?;
            self.metrics.answered(response.status().as_u16());
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            let location = response
                .headers()
                .get(header::LOCATION)
                .and_then(|value| value.to_str().ok());
            let location =
                location.ok_or_else(|| Error::Redirect("without a Location header".into()))?;
            let next = url
                .join(location)
                .map_err(|_| Error::Redirect("to an invalid URL".into()))?;
            self.check_redirect(&url, &next)?;
            url = next;
        }
        Err(Error::Redirect(format!(
            "more than {} times",
            self.config.redirects_max
        )))
    }

    fn check_redirect(&self, from: &Url, to: &Url) -> Result<(), Error> {
        let host = to.host_str().unwrap_or_default();
        if !matches!(to.scheme(), "http" | "https")
            || (from.scheme() == "https" && to.scheme() == "http")
        {
            return Err(Error::Redirect(format!("to the scheme {}", to.scheme())));
        }
        let listed =
            self.origin.redirect_hosts.iter().any(|allowed| {
                *allowed == authority(to) || (allowed == host && to.port().is_none())
            });
        if listed || self.is_origin(to) {
            Ok(())
        } else {
            Err(Error::Redirect(format!(
                "to {}, which is not allowed",
                authority(to)
            )))
        }
    }

    fn is_origin(&self, url: &Url) -> bool {
        let base = &self.base;
        let same_port = url.port_or_known_default() == base.port_or_known_default();
        let upgraded = base.scheme() == "http"
            && url.scheme() == "https"
            && base.port().is_none()
            && url.port().is_none();
        url.host_str() == base.host_str() && (same_port || upgraded)
    }

    /// The configured headers, only for the origin.
    fn own_headers(&self, url: &Url) -> HeaderMap {
        if self.is_origin(url) {
            self.headers.clone()
        } else {
            HeaderMap::new()
        }
    }

    fn headers_for(&self, fetch: &Fetch, url: &Url) -> HeaderMap {
        let mut headers = self.own_headers(url);
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        if let Want::Part(range) | Want::Listed(range) = &fetch.want {
            let text = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            headers.insert(
                header::RANGE,
                HeaderValue::try_from(text).expect("digits are a header value"),
            );
            let same = fetch
                .part_of
                .as_ref()
                .and_then(Validators::strong)
                .and_then(|tag| HeaderValue::try_from(tag).ok());
            headers.extend(same.map(|tag| (header::IF_RANGE, tag)));
        }
        if let Some(known) = &fetch.known {
            let conditions = [
                (header::IF_NONE_MATCH, &known.etag),
                (header::IF_MODIFIED_SINCE, &known.last_modified),
            ];
            for (name, text) in conditions {
                if let Some(value) = text
                    .as_deref()
                    .and_then(|text| HeaderValue::try_from(text).ok())
                {
                    headers.insert(name, value);
                }
            }
        }
        headers
    }

    async fn whole(&self, response: Response, max: u64) -> Result<Fetched, Error> {
        let announced = framed(&response)?;
        if announced.is_some_and(|length| length > max) {
            return Err(Error::TooLarge(max));
        }
        let description = Description::of(&response);
        let bytes = self.read(response, max.saturating_add(1)).await?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if length > max {
            return Err(Error::TooLarge(max));
        }
        check_length(length, announced.unwrap_or(length))?;
        Ok(description.object(bytes, 0, Some(length)))
    }

    async fn head(&self, response: Response, max: u64) -> Result<Fetched, Error> {
        let announced = framed(&response)?;
        let description = Description::of(&response);
        let mut bytes = self
            .read(
                response,
                announced.map_or_else(|| max.saturating_add(1), |length| length.min(max)),
            )
            .await?;
        let read = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        match announced {
            Some(length) => {
                check_length(read, length.min(max))?;
                Ok(description.object(bytes, 0, Some(length)))
            }
            None if read > max => {
                bytes.truncate(usize::try_from(max).unwrap_or(usize::MAX));
                Ok(description.object(bytes, 0, None))
            }
            None => Ok(description.object(bytes, 0, Some(read))),
        }
    }

    /// Reads the beginning of an object from an origin that has ignored the range.
    async fn prefix(
        &self,
        response: Response,
        end: u64,
        is_listed: bool,
    ) -> Result<Fetched, Error> {
        let Some(length) = framed(&response)? else {
            return Err(Error::NoRanges);
        };
        if is_listed && length < end {
            return Err(Error::OutOfRange(Some(length)));
        }
        let description = Description::of(&response);
        let bytes = self.read(response, length.min(end)).await?;
        check_length(
            u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            length.min(end),
        )?;
        Ok(description.object(bytes, 0, Some(length)))
    }

    async fn part(
        &self,
        response: Response,
        want: &Range<u64>,
        is_listed: bool,
    ) -> Result<Fetched, Error> {
        let Some(got) = content_range(&response) else {
            return Err(Error::Protocol("a part without Content-Range".into()));
        };
        let Some(range) = got.range else {
            return Err(Error::Protocol(
                "a part with an invalid Content-Range".into(),
            ));
        };
        let is_end = got.total == Some(range.end);
        if range.start != want.start
            || range.end > want.end
            || (range.end < want.end && (is_listed || !is_end))
        {
            return Err(Error::Length(format!(
                "requested bytes {want:?}, got {range:?}"
            )));
        }
        let length = range.end - range.start;
        if framed(&response)?.is_some_and(|announced| announced != length) {
            return Err(Error::Length(format!(
                "Content-Range has {length} bytes, but Content-Length differs"
            )));
        }
        let description = Description::of(&response);
        let bytes = self.read(response, length.saturating_add(1)).await?;
        check_length(u64::try_from(bytes.len()).unwrap_or(u64::MAX), length)?;
        Ok(description.object(bytes, range.start, got.total))
    }

    /// Reads the body to its end, or to `limit` bytes.
    async fn read(&self, mut response: Response, limit: u64) -> Result<Bytes, Error> {
        let encoded = response
            .headers()
            .get(header::CONTENT_ENCODING)
            .is_some_and(|value| value != "identity");
        if encoded {
            return Err(Error::Protocol(
                "a compressed body, which the server did not request".into(),
            ));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::new();
        while bytes.len() < limit {
            let Some(chunk) = response.chunk().await.map_err(|error| body_error(&error))? else {
                break;
            };
            let taken = chunk.len().min(limit - bytes.len());
            bytes.extend_from_slice(&chunk[..taken]);
        }
        self.metrics
            .bytes
            .inc_by(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(bytes.freeze())
    }
}

impl Source for Http {
    fn fetch(&self, fetch: Fetch) -> BoxFuture<'_, Result<Fetched, Error>> {
        Box::pin(async move {
            let begun = Instant::now();
            let outcome = self.fetch_with_retries(&fetch).await;
            if let Err(error) = &outcome {
                complain(&self.complaints, error, || fetch.path.request(&self.base));
            }
            self.metrics.finished(begun.elapsed(), &outcome);
            outcome
        })
    }

    fn changes(&self) -> Option<mpsc::Receiver<Change>> {
        None
    }

    fn base(&self) -> Option<&Url> {
        Some(&self.base)
    }

    fn has_queries(&self) -> bool {
        true
    }
}

/// An object's headers.
struct Description {
    validators: Validators,
    content_type: Option<String>,
}

impl Description {
    fn of(response: &Response) -> Self {
        let text = |name: HeaderName| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let validators = Validators {
            etag: text(header::ETAG),
            last_modified: text(header::LAST_MODIFIED),
            told: None,
        };
        Self {
            validators,
            content_type: response
                .headers()
                .get(header::CONTENT_TYPE)
                .and_then(media_type),
        }
    }

    fn object(self, bytes: Bytes, offset: u64, length: Option<u64>) -> Fetched {
        Fetched::Object(Object {
            bytes,
            offset,
            length,
            validators: self.validators,
            content_type: self.content_type,
            complete: Instant::now(),
            issued_ms: None,
        })
    }
}

/// `Content-Range: bytes 0-99/1000`, `bytes 0-99/*` or `bytes */1000`.
struct ContentRange {
    range: Option<Range<u64>>,
    total: Option<u64>,
}

fn content_range(response: &Response) -> Option<ContentRange> {
    let text = response
        .headers()
        .get(header::CONTENT_RANGE)?
        .to_str()
        .ok()?;
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let total = if total == "*" {
        None
    } else {
        Some(total.parse::<u64>().ok()?)
    };
    if range == "*" {
        return Some(ContentRange { range: None, total });
    }
    let (first, last) = range.split_once('-')?;
    let range = first.parse::<u64>().ok()?..last.parse::<u64>().ok()?.checked_add(1)?;
    let is_sane = range.start < range.end && total.is_none_or(|total| range.end <= total);
    is_sane.then_some(ContentRange {
        range: Some(range),
        total,
    })
}

/// The announced length of a body whose end is distinguishable from a truncation. Length and chunks
/// together are refused: the library would follow the chunks, an intermediary perhaps the length.
fn framed(response: &Response) -> Result<Option<u64>, Error> {
    let headers = response.headers();
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .map(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced == Some(None) {
        return Err(Error::Length("Content-Length is not a number".into()));
    }
    let announced = announced.flatten();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) if announced.is_none() && response.version() <= Version::HTTP_11 => Err(
            Error::Length("the answer has neither a Content-Length nor chunked encoding".into()),
        ),
        (None, _) => Ok(announced),
        (Some(_), _) if announced.is_some() => Err(Error::Length(
            "the answer has both a Content-Length and a transfer coding".into(),
        )),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(None),
        (Some(_), _) => Err(Error::Length(
            "a transfer coding other than chunked, which the server did not request".into(),
        )),
    }
}

/// `Retry-After` in seconds. Dates are ignored, because clocks differ.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response
        .headers()
        .get(header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse::<u64>()
        .ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// A media type as META allows it: visible ASCII and blanks, and short. Anything else counts as
/// none.
fn media_type(value: &HeaderValue) -> Option<String> {
    let text = value.to_str().ok()?.replace('\t', " ");
    let text = text.trim();
    let is_fit = !text.is_empty()
        && text.len() <= CONTENT_TYPE_MAX
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    is_fit.then(|| text.to_owned())
}

fn check_length(got: u64, expected: u64) -> Result<(), Error> {
    if got == expected {
        Ok(())
    } else {
        Err(Error::Truncated(format!("{got} of {expected} bytes")))
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn request_error(error: &reqwest::Error) -> Error {
    if error.is_timeout() {
        Error::Timeout
    } else if error.is_builder() {
        Error::Protocol(redacted(&innermost(error)))
    } else {
        Error::Connect(redacted(&innermost(error)))
    }
}

fn body_error(error: &reqwest::Error) -> Error {
    if error.is_timeout() {
        Error::Timeout
    } else {
        Error::Truncated(redacted(&innermost(error)))
    }
}

/// The last error of the chain: the outer ones repeat the URL, which may hold credentials.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

const COMPLAIN_EVERY: Duration = Duration::from_secs(10);
/// The maximum `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The maximum length of a media type.
const CONTENT_TYPE_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::Metrics;

    fn http(base: &str, redirect_hosts: &[&str]) -> Http {
        let origin = Origin {
            base: Secret::new(Url::parse(base).unwrap()),
            host: None,
            headers: BTreeMap::from([("X-Key".into(), Secret::new("secret".into()))]),
            redirect_hosts: redirect_hosts
                .iter()
                .map(|host| (*host).to_owned())
                .collect(),
            timeout: Duration::from_secs(5),
        };
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        Http::open(origin, &Config::default(), metrics.http).unwrap()
    }

    #[tokio::test]
    async fn redirects_stay_where_they_are_allowed() {
        let source = http(
            "https://origin.test/base/",
            &["cdn.test", "edge.test:8443", "[::1]:81"],
        );
        let from = Url::parse("https://origin.test/base/x").unwrap();
        for (to, allowed) in [
            ("https://origin.test/elsewhere", true),
            ("https://origin.test:443/x", true),
            ("http://origin.test/base/x", false),
            ("https://origin.test:8443/x", false),
            ("https://cdn.test/x", true),
            ("https://cdn.test:444/x", false),
            ("https://sub.cdn.test/x", false),
            ("https://cdn.test.evil.test/x", false),
            ("https://cdn.test@evil.test/x", false),
            ("https://edge.test:8443/x", true),
            ("https://edge.test/x", false),
            ("https://[::1]:81/x", true),
            ("https://127.0.0.1/x", false),
            ("file:///etc/passwd", false),
        ] {
            assert_eq!(
                source
                    .check_redirect(&from, &Url::parse(to).unwrap())
                    .is_ok(),
                allowed,
                "{to}"
            );
        }
    }

    #[tokio::test]
    async fn headers_are_for_the_origin_alone() {
        let source = http("http://origin.test/base/", &["cdn.test"]);
        let part_of = Some(Validators {
            etag: Some("\"tag\"".into()),
            last_modified: None,
            told: None,
        });
        let mut fetch = Fetch {
            path: "x".parse_path(),
            want: Want::Listed(5..10),
            known: None,
            part_of,
        };
        let weak = Some(Validators {
            etag: Some("W/\"tag\"".into()),
            last_modified: None,
            told: None,
        });
        let tag = |fetch: &Fetch| {
            source
                .headers_for(fetch, &Url::parse("http://origin.test/x").unwrap())
                .get("if-range")
                .cloned()
        };
        assert_eq!(tag(&fetch).unwrap(), "\"tag\"");
        fetch.part_of = weak;
        assert_eq!(
            tag(&fetch),
            None,
            "a weak tag does not say that the bytes are the same"
        );
        let headers = |url: &str| source.headers_for(&fetch, &Url::parse(url).unwrap());
        assert_eq!(headers("http://origin.test/x")["x-key"], "secret");
        assert_eq!(headers("https://origin.test/x")["x-key"], "secret");
        assert!(!headers("http://cdn.test/x").contains_key("x-key"));
        assert_eq!(headers("http://cdn.test/x")[header::RANGE], "bytes=5-9");
    }

    trait ParsePath {
        fn parse_path(&self) -> crate::ingest::ObjectPath;
    }

    impl ParsePath for str {
        fn parse_path(&self) -> crate::ingest::ObjectPath {
            crate::ingest::ObjectPath::parse(self).unwrap()
        }
    }
}
