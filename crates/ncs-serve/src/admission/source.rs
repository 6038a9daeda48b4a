//! The source of a set of keys: a file or a URL.

use std::path::PathBuf;
use std::time::Duration;

use ncs_net::secret::{Secret, is_http, redacted};
use reqwest::Client;
use url::{Host, ParseError, Url};

use super::clients::read;
use super::keys::SET_BYTES_MAX;

/// The maximum time to fetch keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// A place from which keys are read repeatedly.
#[derive(Debug, Clone)]
pub(super) enum Source {
    File(PathBuf),
    Url(Secret<Url>, Client),
}

/// The place in `admission.keys`. Must not be printed: the URL may hold credentials.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Named {
    File(PathBuf),
    Url(Url),
}

impl Named {
    /// A URL if it looks like one, otherwise a file. The error does not quote the text, which may
    /// hold credentials.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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

    /// Whether an attacker on the path could replace the keys.
    pub(super) fn is_open_to_the_network(&self) -> bool {
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
    pub(super) fn new(named: Named) -> Result<Self, String> {
        match named {
            Named::File(path) => Ok(Self::File(path)),
            Named::Url(url) => {
                // Only the first provider of a process is installed; an existing one is as good.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client = Client::builder()
                    .redirect(reqwest::redirect::Policy::none())
                    .no_proxy()
                    .timeout(FETCH_TIMEOUT)
                    .user_agent(concat!("ncserverd/", env!("CARGO_PKG_VERSION")))
                    .build();
                Ok(Self::Url(
                    Secret::new(url),
                    client.map_err(|error| error.to_string())?,
                ))
            }
        }
    }

    /// The content of a file; `None` for a URL.
    pub(super) fn read(&self) -> Option<Result<Vec<u8>, String>> {
        match self {
            Self::File(path) => Some(read(path, SET_BYTES_MAX)),
            Self::Url(..) => None,
        }
    }

    /// The content, from a file or a URL.
    pub(super) async fn fetch(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::File(path) => read(path, SET_BYTES_MAX),
            Self::Url(url, client) => {
                let fail = |error: reqwest::Error| redacted(&error.without_url().to_string());
                let mut response = client
                    .get(url.expose().clone())
                    .send()
                    .await
                    .map_err(fail)?;
                if !response.status().is_success() {
                    return Err(format!("status {}", response.status().as_u16()));
                }
                let mut bytes = Vec::new();
                while let Some(chunk) = response.chunk().await.map_err(fail)? {
                    bytes.extend_from_slice(&chunk);
                    if bytes.len() > SET_BYTES_MAX {
                        return Err(format!("more than {SET_BYTES_MAX} bytes"));
                    }
                }
                Ok(bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
