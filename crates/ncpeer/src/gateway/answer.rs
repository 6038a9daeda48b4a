//! The gateway's HTTP responses: heads, refusals, short bodies.

use std::ops::Range;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response};
use axum::response::Response;
use bytes::Bytes;
use ncs_proto::object::{Refusal, RefusalCode};

use super::access::Reader;
use crate::http::{ByteRange, media_type};

/// The properties of an object for the head of its response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served<'a> {
    pub(super) path: &'a str,
    pub(super) content_type: &'a str,
    pub(super) mutable: bool,
    pub(super) max_age: Duration,
}

impl Served<'_> {
    pub(super) fn head(&self, tag: &str) -> response::Builder {
        let content_type = if self.content_type.is_empty() {
            media_type(self.path)
        } else {
            self.content_type
        };
        let cache = if self.mutable {
            "no-cache".to_owned()
        } else {
            format!("max-age={}", self.max_age.as_secs())
        };
        Response::builder()
            .header(header::CONTENT_TYPE, content_type)
            .header(header::CACHE_CONTROL, cache)
            .header(header::ETAG, tag)
            .header(header::ACCEPT_RANGES, "bytes")
    }
}

/// The head of a response with part of an object of `length` bytes.
pub(super) fn partial(
    response: response::Builder,
    range: &Range<u64>,
    length: u64,
) -> response::Builder {
    response
        .status(StatusCode::PARTIAL_CONTENT)
        .header(
            header::CONTENT_RANGE,
            format!(
                "bytes {}-{}/{length}",
                range.start,
                range.end.saturating_sub(1)
            ),
        )
        .header(
            header::CONTENT_LENGTH,
            range.end.saturating_sub(range.start),
        )
}

/// A response without the object.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    content_range: Option<String>,
    pub(super) reason: String,
}

impl Failure {
    pub(super) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self {
            status,
            retry_after: None,
            content_range: None,
            reason: reason.into(),
        }
    }

    /// A failure that may pass.
    pub(super) fn busy(reason: impl Into<String>) -> Self {
        Self {
            retry_after: Some(RETRY_AFTER),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, reason)
        }
    }

    pub(super) fn unsatisfiable(length: u64) -> Self {
        let content_range = Some(format!("bytes */{length}"));
        Self {
            content_range,
            ..Self::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "the range is outside the object",
            )
        }
    }

    pub(super) fn into_response(self) -> Response {
        let mut response = Response::builder()
            .status(self.status)
            .header(header::CONTENT_TYPE, "text/plain; charset=utf-8")
            .header(header::CACHE_CONTROL, "no-store");
        if let Some(after) = self.retry_after {
            response = response.header(
                header::RETRY_AFTER,
                after.as_millis().div_ceil(1000).max(1).to_string(),
            );
        }
        if let Some(range) = self.content_range {
            response = response.header(header::CONTENT_RANGE, range);
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response = response.header(header::ALLOW, METHODS);
        }
        finish(response, Body::from(self.reason + "\n"))
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.code {
            RefusalCode::Unknown => StatusCode::NOT_FOUND,
            // Not 401: credentials of the player would not help.
            RefusalCode::Forbidden => StatusCode::FORBIDDEN,
            RefusalCode::Deadline => StatusCode::GATEWAY_TIMEOUT,
            RefusalCode::Overload | RefusalCode::GoingAway => StatusCode::SERVICE_UNAVAILABLE,
            RefusalCode::Limit
            | RefusalCode::Origin
            | RefusalCode::Changed
            | RefusalCode::Internal => StatusCode::BAD_GATEWAY,
        };
        let later = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER);
        Self {
            retry_after: refusal.retry_after.or(later),
            ..Self::new(status, refusal.reason)
        }
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Self {
        use crate::Error;
        let status = match error {
            Error::Refused(refusal) => return refusal.into(),
            Error::Range(length) => return Self::unsatisfiable(length),
            Error::Path(_) => StatusCode::NOT_FOUND,
            Error::Deadline | Error::Stalled(_) | Error::Gone | Error::Slow => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Error::Corrupt | Error::Changed | Error::Missing(_) => StatusCode::BAD_GATEWAY,
            Error::Connection(_) | Error::Untrusted(_) | Error::Closed | Error::Setup(_) => {
                return Self::busy(error.to_string());
            }
        };
        Self::new(status, error.to_string())
    }
}

/// A short object in memory, or the requested part of it.
pub(super) fn slice(
    response: response::Builder,
    headers: &HeaderMap,
    tag: &str,
    bytes: Bytes,
) -> Response {
    if text(headers, header::IF_NONE_MATCH).is_some_and(|known| names(known, tag)) {
        return finish(response.status(StatusCode::NOT_MODIFIED), Body::empty());
    }
    let length = bytes.len() as u64;
    let same = text(headers, header::IF_RANGE).is_none_or(|known| known == tag);
    let range = text(headers, header::RANGE)
        .filter(|_| same)
        .and_then(ByteRange::parse);
    let Some(range) = range else {
        return finish(
            response.header(header::CONTENT_LENGTH, length),
            Body::from(bytes),
        );
    };
    let Some(range) = range.resolve(length) else {
        return Failure::unsatisfiable(length).into_response();
    };
    let place = usize::try_from(range.start)
        .ok()
        .zip(usize::try_from(range.end).ok());
    let (start, end) = place.expect("a range of bytes in memory");
    finish(
        partial(response, &range, length),
        Body::from(bytes.slice(start..end)),
    )
}

pub(super) fn preflight(reader: &Reader) -> Response {
    let response = Response::builder()
        .status(StatusCode::NO_CONTENT)
        .header(header::ALLOW, METHODS);
    if *reader == Reader::Own {
        return finish(response, Body::empty());
    }
    let response = response
        .header(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS)
        .header(header::ACCESS_CONTROL_ALLOW_HEADERS, "*")
        .header(header::ACCESS_CONTROL_MAX_AGE, "86400")
        // Browsers ask before a page from the network may access loopback.
        .header("access-control-allow-private-network", "true");
    finish(response, Body::empty())
}

/// Sets which pages may read the response (CORS), and that other pages may not embed it unless they
/// may read it.
pub(super) fn allow(reader: &Reader, headers: &mut HeaderMap) {
    let origin = match reader {
        Reader::Any => HeaderValue::from_static("*"),
        Reader::Origin(origin) => origin.clone(),
        Reader::Own => {
            headers.insert(
                HeaderName::from_static("cross-origin-resource-policy"),
                SAME_ORIGIN,
            );
            headers.append(header::VARY, VARY_ORIGIN);
            return;
        }
    };
    if origin != "*" {
        headers.append(header::VARY, VARY_ORIGIN);
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}

pub(super) fn index() -> Response {
    let response = Response::builder().header(header::CONTENT_TYPE, "text/html; charset=utf-8");
    finish(response, Body::from(include_str!("index.html")))
}

/// An invalid header value from the network causes a 502, not a panic.
pub(super) fn finish(response: response::Builder, body: Body) -> Response {
    response.body(body).unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

pub(super) fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

pub(super) fn tag(version: u64) -> String {
    format!("\"{version:016x}\"")
}

/// Whether an If-None-Match contains the tag, by weak comparison (RFC 9110, section 13.1.2).
pub(super) fn names(known: &str, tag: &str) -> bool {
    known
        .split(',')
        .map(str::trim)
        .any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

const METHODS: &str = "GET, HEAD, OPTIONS";
/// When a player may retry after overload.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Accept-Ranges, Content-Length, Content-Range, Date, ETag, Retry-After",
);
const SAME_ORIGIN: HeaderValue = HeaderValue::from_static("same-origin");
const VARY_ORIGIN: HeaderValue = HeaderValue::from_static("Origin");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_their_status() {
        let status = |code| {
            let failure = Failure::from(Refusal {
                code,
                retry_after: None,
                reason: "no".into(),
            });
            (failure.status.as_u16(), failure.retry_after.is_some())
        };
        assert_eq!(status(RefusalCode::Unknown), (404, false));
        assert_eq!(status(RefusalCode::Deadline), (504, false));
        assert_eq!(status(RefusalCode::Overload), (503, true));
        assert_eq!(status(RefusalCode::GoingAway), (503, true));
        assert_eq!(status(RefusalCode::Origin), (502, false));
        assert_eq!(status(RefusalCode::Forbidden), (403, false));
    }

    #[test]
    fn tags_match_weakly() {
        assert!(
            names("\"a\", W/\"b\"", "\"b\"") && names("*", "\"b\"") && !names("\"a\"", "\"b\"")
        );
    }

    #[test]
    fn an_impossible_media_type_is_the_origins_fault() {
        let response = finish(
            Response::builder().header(header::CONTENT_TYPE, "a\nb"),
            Body::empty(),
        );
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    }
}
