//! The origin: live streams that grow with time, and an HTTP server for them that can be stopped
//! and started.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ncserverd::lab::origin::Origin;
use tokio::runtime::{Builder, Runtime};

use nctest::live::{Feeder, PLAYLIST};

/// Segments that a playlist names: more than become due while the origin is away.
const WINDOW: u64 = 20;

/// Both, until it is dropped.
pub(crate) struct Source {
    directory: PathBuf,
    address: SocketAddr,
    feeders: Vec<Feeder>,
    running: Option<(Origin, Runtime)>,
}

impl Source {
    /// Begins to serve a directory that is there and empty.
    pub(crate) fn start(directory: &Path) -> Self {
        let runtime = runtime();
        let origin = runtime
            .block_on(Origin::of_directory(directory))
            .expect("a port");
        Self {
            directory: directory.to_owned(),
            address: origin.address(),
            feeders: Vec::new(),
            running: Some((origin, runtime)),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Begins a stream of so many bits a second; the path of its playlist.
    pub(crate) fn add(&mut self, name: &str, bitrate: u64) -> String {
        let directory = self.directory.join(name);
        fs::create_dir(&directory).expect("a folder");
        let (feeder, _) = Feeder::start(&directory, bitrate, WINDOW);
        self.feeders.push(feeder);
        format!("{name}/media/{PLAYLIST}")
    }

    /// Ends the server and all of its connections. The streams go on.
    pub(crate) fn stop(&mut self) {
        self.running = None;
    }

    /// Serves again where it was.
    pub(crate) fn restart(&mut self) {
        let runtime = runtime();
        let origin = runtime
            .block_on(Origin::of_directory_at(&self.directory, self.address))
            .expect("the port is free again");
        self.running = Some((origin, runtime));
    }
}

/// Of its own, so that nothing of the server outlives it.
fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a thread")
}
