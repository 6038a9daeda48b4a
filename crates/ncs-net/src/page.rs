//! What the pages for people have in common: their headers, and their looks.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

/// The style of all pages.
pub const STYLE: &str = include_str!("page/page.css");
/// The icon of all pages.
pub const ICON: &str = include_str!("page/icon.svg");
/// What the scripts of all pages use.
pub const SCRIPT: &str = include_str!("page/page.js");

/// An answer of a page. Its content comes from this address only, and no other site may embed it.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A sentence.
pub fn sentence(status: StatusCode, text: &str) -> Response {
    answer(status, TEXT, format!("{text}\n"))
}

/// Whether a browser says that a page of another site has caused the request: such a page cannot
/// read the answer, but could take places of event streams.
pub fn is_of_another(headers: &HeaderMap) -> bool {
    headers
        .get("sec-fetch-site")
        .is_some_and(|site| site != "same-origin" && site != "none")
}

/// The media types of the parts of a page.
pub const HTML: &str = "text/html; charset=utf-8";
/// See [`HTML`].
pub const CSS: &str = "text/css; charset=utf-8";
/// See [`HTML`].
pub const JS: &str = "text/javascript; charset=utf-8";
/// See [`HTML`].
pub const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];
