//! Checks of streams' sources: folders, origins, and missing signing keys.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus::Registry;

use super::{Check, trust};
use crate::config::Config;
use crate::ingest::http::Http;
use crate::{ingest, stream};

/// One check per stream, and one per signing key that has to be created.
pub(super) fn streams(config: &Config) -> Vec<Check> {
    let origins: Vec<_> = config
        .stream
        .iter()
        .filter(|(_, stream)| stream.directory.is_none())
        .collect();
    let mut checks: Vec<Check> = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        _ if origins.is_empty() => Vec::new(),
        Ok(runtime) => {
            let checks = join_all(
                origins
                    .into_iter()
                    .map(|(name, stream)| origin(name, stream, &config.ingest)),
            );
            let checks = runtime.block_on(checks);
            // Does not wait for a name server that does not answer.
            runtime.shutdown_background();
            checks
        }
        Err(error) => vec![Check::fail(
            STREAM,
            error.to_string(),
            "cannot create timers: raise the system's limits",
        )],
    };
    for (name, stream) in &config.stream {
        checks.extend(stream.directory.as_deref().map(|root| folder(name, root)));
        checks.extend(
            stream
                .signing_key
                .as_deref()
                .and_then(|key| new_key(name, key)),
        );
    }
    checks
}

/// The server does not start without a readable folder.
fn folder(name: &str, root: &Path) -> Check {
    match fs::read_dir(root) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Check::ok(
                STREAM,
                format!("{name} from {}, which is readable", root.display()),
            ),
            None => Check::warn(
                STREAM,
                format!("{name} from {}, which is empty", root.display()),
                "put the media into it",
            ),
        },
        Err(error) => Check::fail(
            STREAM,
            format!(
                "{name} from {}, which cannot be read: {error}",
                root.display()
            ),
            format!("set `stream.{name}.directory` to a folder that the service's user may read"),
        ),
    }
}

/// An existing key was read with the configuration.
fn new_key(name: &str, key: &Path) -> Option<Check> {
    if key.exists() {
        return None;
    }
    let parent = key.parent().unwrap_or_else(|| Path::new("/"));
    Some(match trust::write_and_remove(parent) {
        Ok(()) => Check::ok(
            "signing key",
            format!(
                "{name}: no key yet; the first start creates {}",
                key.display()
            ),
        ),
        Err(error) => Check::fail(
            "signing key",
            format!(
                "{name}: {} does not exist and cannot be created: {error}",
                key.display()
            ),
            format!(
                "set `stream.{name}.signing_key` to a file, or to a path where the service's user \
                 may write"
            ),
        ),
    })
}

/// Sends a HEAD request for the top of the stream, which viewers never do. What matters is whether
/// an answer comes, and whether it requires credentials.
async fn origin(name: &str, stream: &stream::Config, ingest: &ingest::Config) -> Check {
    let (key, shown) = (
        format!("`stream.{name}.origin`"),
        stream
            .origin
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
    );
    let metrics = ingest::Metrics::new(&Registry::new()).expect("a new registry takes them");
    let http = stream.http().map_err(|fault| fault.to_string());
    let http = http.and_then(|origin| {
        Http::open(origin, ingest, metrics.http).map_err(|error| error.to_string())
    });
    let http = match http {
        Ok(http) => http,
        Err(error) => {
            return Check::fail(
                STREAM,
                format!("{name} from {shown}: {error}"),
                format!("change {key}"),
            );
        }
    };
    match tokio::time::timeout(ORIGIN_WITHIN, http.look()).await {
        Ok(Ok(status @ (401 | 407))) => Check::warn(
            STREAM,
            format!("{name} from {shown}, which answers {status}: it requires credentials"),
            format!(
                "set `stream.{name}.headers`, such as `headers.Authorization = {{ file = \"…\" }}`"
            ),
        ),
        Ok(Ok(status @ 500..)) => Check::warn(
            STREAM,
            format!("{name} from {shown}, which answers {status}"),
            "fix the origin: it reports an error",
        ),
        // Few origins list their folders.
        Ok(Ok(status)) => Check::ok(
            STREAM,
            format!("{name} from {shown}, which answers ({status} for the folder itself)"),
        ),
        Ok(Err(error @ ingest::Error::Redirect(_))) => Check::warn(
            STREAM,
            format!(
                "{name} from {shown}: {error}; viewers' requests fail if the origin redirects \
                 them, too"
            ),
            format!("change {key}, or add the host to `stream.{name}.redirect_hosts`"),
        ),
        Ok(Err(error)) => Check::warn(
            STREAM,
            format!("{name} from {shown}: {error}"),
            format!("change {key}, or start the origin"),
        ),
        Err(_) => Check::warn(
            STREAM,
            format!(
                "{name} from {shown}, which does not answer within {} s",
                ORIGIN_WITHIN.as_secs()
            ),
            format!("change {key}, or start the origin"),
        ),
    }
}

const STREAM: &str = "stream";
/// A user waits for this.
const ORIGIN_WITHIN: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use tempfile::TempDir;

    use super::super::Verdict;
    use super::*;

    fn looked_at(stream: stream::Config) -> Vec<Check> {
        let mut config = Config::default();
        config.stream.insert("live".to_owned(), stream);
        streams(&config)
    }

    /// An origin that answers one request, and returns what was requested.
    fn answering(status: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hls/", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            .unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (url, asked)
    }

    #[test]
    fn an_origin_is_asked_for_the_head_of_its_folder() {
        for (status, verdict) in [
            ("200 OK", Verdict::Ok),
            ("403 Forbidden", Verdict::Ok),
            ("401 Unauthorized", Verdict::Warn),
            ("503 Service Unavailable", Verdict::Warn),
        ] {
            let (url, asked) = answering(status);
            let checks = looked_at(stream::Config {
                origin: Some(url.as_str().into()),
                ..stream::Config::default()
            });
            assert_eq!(
                (checks.len(), checks[0].verdict),
                (1, verdict),
                "{checks:?}"
            );
            assert!(
                checks[0].found.contains(&status[..3]) && checks[0].found.contains(&url),
                "{}",
                checks[0]
            );
            assert!(asked.join().unwrap().starts_with("HEAD /hls/ "));
        }
        let (url, asked) = answering("302 Found\r\nLocation: https://login.example/");
        let away = looked_at(stream::Config {
            origin: Some(url.as_str().into()),
            ..stream::Config::default()
        });
        assert!(
            away[0].verdict == Verdict::Warn && away[0].found.contains("login.example"),
            "{}",
            away[0]
        );
        assert!(
            away[0].to_string().contains("redirect_hosts"),
            "{}",
            away[0]
        );
        asked.join().unwrap();
        let gone = looked_at(stream::Config {
            origin: Some("http://127.0.0.1:9/".into()),
            ..stream::Config::default()
        });
        assert_eq!(gone[0].verdict, Verdict::Warn, "{}", gone[0]);
    }

    #[test]
    fn a_directory_is_read() {
        let place = TempDir::new().unwrap();
        let of = |directory: &Path| {
            let config = stream::Config {
                directory: Some(directory.to_owned()),
                ..stream::Config::default()
            };
            looked_at(config)[0].verdict
        };
        assert_eq!(of(place.path()), Verdict::Warn, "it is empty");
        fs::write(place.path().join("clip.mp4"), "clip").unwrap();
        assert_eq!(of(place.path()), Verdict::Ok);
        assert_eq!(of(&place.path().join("gone")), Verdict::Fail);
    }

    #[test]
    fn a_key_that_is_to_be_made_needs_a_place() {
        let place = TempDir::new().unwrap();
        fs::write(place.path().join("clip.mp4"), "clip").unwrap();
        let of = |key: &Path| {
            let (directory, signing_key) = (Some(place.path().to_owned()), Some(key.to_owned()));
            looked_at(stream::Config {
                directory,
                signing_key,
                ..stream::Config::default()
            })[1]
                .verdict
        };
        let keys = TempDir::new().unwrap();
        assert_eq!(of(&keys.path().join("live.pem")), Verdict::Ok);
        assert_eq!(
            keys.path().read_dir().unwrap().count(),
            0,
            "nothing is left behind"
        );
        assert_eq!(of(&keys.path().join("gone/live.pem")), Verdict::Fail);
    }
}
