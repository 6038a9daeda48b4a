//! The programs of the scenes: servers with the same streams, and the commands of their clients.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ncserverd::lab::lossy::{self, Link};
use ncserverd::tls::{self, Fingerprint, ServerIdentity};
use nctest::daemon::certify;
use nctest::fleet::{free_address, free_ports};
use nctest::http::get;
use nctest::mint;
use nctest::program::{PATIENCE, Program, metric, serve};
use nctest::script::bytes;
use tempfile::TempDir;

use crate::program::program;
pub(crate) use crate::tap::Loss;

/// Objects of every stream. Recordings hold what was made of them: they stay as they are.
const SEGMENT: &str = "0.ts";
const NEXT: &str = "1.ts";
const PLAYLIST: &str = "list.m3u8";
const LONG: &str = "long.m3u8";
/// An object that is in no recording.
const LARGE: &str = "large.ts";

/// The bytes of an object, by its path.
pub(crate) fn object(path: &str) -> Vec<u8> {
    match path.rsplit('/').next().unwrap() {
        // Two generations of five and four blocks, the last of them in part.
        SEGMENT => bytes(1, 9_000),
        // Too long for META, as the other.
        NEXT => bytes(2, 4_400),
        PLAYLIST => "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n1.ts\n".into(),
        // Too long for META.
        LONG => format!(
            "{}#EXT-X-ENDLIST\n",
            "#EXTM3U\n#EXTINF:2,\n0.ts\n".repeat(200)
        )
        .into(),
        LARGE => bytes(3, 2_000_000),
        _ => panic!("{path} is not there"),
    }
}

/// How soon a gateway has requested the blocks that a player wants.
const REQUESTS_WITHIN: Duration = Duration::from_millis(400);

/// Settings by which today's server cuts and codes segments as the recorded one did: they stay as
/// they are.
fn settings(folder: &Path, own: &Path) -> String {
    let (folder, own) = (folder.display(), own.display());
    let stream = |name: &str, block_bytes: u32, more: &str| {
        format!(
            "[stream.{name}]\ndirectory = \"{folder}/media\"\nsigning_key = \"{folder}/key.pem\"\n\
             n_max = 5\ngenerations_min = 1\nblock_bytes = {block_bytes}\n{more}\n"
        )
    };
    [
        format!("[admission]\nkeys = \"{folder}/keys.json\"\nrequired = false\n"),
        format!("[tls]\ncert = \"{own}/cert.pem\"\nkey = \"{own}/key.pem\"\n"),
        stream("live", 1088, ""),
        stream("large", 1088, "").replace("n_max = 5", "n_max = 64"),
        stream("systematic", 1088, "first_pass = \"systematic\""),
        stream("sparse", 512, "row_weight = 6\nrow_weight_force = true")
            .replace("n_max = 5", "n_max = 9"),
        stream("rs", 1088, "codec = \"rs\"\nparity = 3"),
        stream("raptorq", 1088, "codec = \"raptorq\""),
        stream("prime", 1056, "codec = \"rlnc-q\""),
    ]
    .concat()
}

/// What happens in a scene.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Act {
    pub(crate) name: &'static str,
    pub(crate) plot: Plot,
    pub(crate) path: &'static str,
    /// Further arguments of the client.
    pub(crate) flags: &'static [&'static str],
    /// What is lost while it is recorded.
    pub(crate) loss: Loss,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plot {
    /// `ncpeer fetch` gets the object.
    Gets,
    /// It learns that there is no such object.
    Misses,
    /// It gives up.
    GivesUp,
    /// A player behind `ncpeer gateway` gets a live playlist and a segment from server `a`. That
    /// ends, and the player gets another segment from server `b`. Of that, `a` has sent nothing.
    Moves,
}

const fn gets(name: &'static str, path: &'static str, flags: &'static [&'static str]) -> Act {
    Act {
        name,
        plot: Plot::Gets,
        path,
        flags,
        loss: Loss::Nothing,
    }
}

/// All scenes of a recording.
pub(crate) const ACTS: [Act; 13] = [
    gets("playlist", "/live/list.m3u8", &[]),
    gets("long", "/live/long.m3u8", &[]),
    gets("token", "/live/list.m3u8", &["--token-file", "TOKEN"]),
    Act {
        plot: Plot::Misses,
        ..gets("missing", "/live/none.ts", &[])
    },
    Act {
        loss: Loss::Some,
        ..gets("datagrams", "/live/0.ts", &[])
    },
    gets("streams", "/live/0.ts", &["--no-datagrams"]),
    gets("systematic", "/systematic/1.ts", &[]),
    gets("sparse", "/sparse/1.ts", &[]),
    Act {
        loss: Loss::Some,
        ..gets("rs", "/rs/0.ts", &[])
    },
    Act {
        loss: Loss::Some,
        ..gets("raptorq", "/raptorq/0.ts", &[])
    },
    gets("prime", "/prime/0.ts", &[]),
    Act {
        plot: Plot::GivesUp,
        loss: Loss::Blocks,
        ..gets("cancelled", "/live/1.ts", &["--deadline", "700ms"])
    },
    Act {
        plot: Plot::Moves,
        loss: Loss::Later,
        ..gets("moves", "/live/list.m3u8", &[])
    },
];

/// Programs of this build, or those that the environment names.
pub(crate) fn chosen(name: &str, variable: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| program(name), PathBuf::from)
}

/// What servers of a scene share, and where each listens.
pub(crate) struct Place {
    folder: TempDir,
    /// The servers `a` and `b`, and their programs.
    members: [Member; 2],
    programs: [PathBuf; 2],
    _links: Vec<Link>,
}

/// How clients reach the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    /// Through taps.
    Tapped,
    /// Through paths that delay and lose packets. There is a large object, too.
    Lossy,
}

/// How servers of a fleet know each other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Engine {
    Static,
    /// NATS at this port.
    Nats(u16),
}

/// A server, before it runs.
pub(crate) struct Member {
    pub(crate) listens: SocketAddr,
    /// Where clients of a scene reach it.
    pub(crate) public: SocketAddr,
    pub(crate) pin: Fingerprint,
}

impl Place {
    /// With servers of these programs, which clients reach in this way.
    pub(crate) fn new(programs: [&Path; 2], way: Way) -> Self {
        let folder = TempDir::new().unwrap();
        let at = folder.path();
        let media = at.join("media");
        std::fs::create_dir(&media).unwrap();
        for name in [SEGMENT, NEXT, PLAYLIST, LONG] {
            std::fs::write(media.join(name), object(name)).unwrap();
        }
        if way == Way::Lossy {
            std::fs::write(media.join(LARGE), object(LARGE)).unwrap();
        }
        std::fs::write(at.join("keys.json"), mint::keys().to_string()).unwrap();
        let century = 100 * 365 * 86_400;
        std::fs::write(at.join("TOKEN"), mint::token(&["/live/*"], century)).unwrap();
        std::fs::write(at.join("secret"), "a secret that both members have\n").unwrap();
        let mut links = Vec::new();
        let members = ["a", "b"].map(|name| {
            let own = at.join(name);
            std::fs::create_dir(&own).unwrap();
            let pin = certify(&own);
            std::fs::write(own.join("config.toml"), settings(at, &own)).unwrap();
            let listens = free_address();
            let public = match way {
                Way::Direct => listens,
                Way::Tapped => free_address(),
                Way::Lossy => {
                    let path = lossy::Direction {
                        delay: Duration::from_millis(10),
                        ..lossy::Direction::losing(0.1)
                    };
                    let link = Link::start(lossy::Config {
                        server: listens,
                        seed: links.len() as u64,
                        to_server: path,
                        to_client: path,
                    });
                    links.push(link.unwrap());
                    links[links.len() - 1].address()
                }
            };
            Member {
                listens,
                public,
                pin,
            }
        });
        let entries: String = ["a", "b"]
            .iter()
            .zip(&members)
            .map(|(name, member)| {
                format!(
                    "[[member]]\nname = \"{name}\"\naddress = \"{}\"\nfingerprint = \"{}\"\n",
                    member.listens, member.pin
                )
            })
            .collect();
        std::fs::write(at.join("members.toml"), entries).unwrap();
        Self {
            folder,
            members,
            programs: programs.map(Path::to_owned),
            _links: links,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn member(&self, letter: char) -> &Member {
        &self.members[usize::from(letter == 'b')]
    }

    /// The certificate and the key of a server.
    pub(crate) fn identity(&self, letter: char) -> ServerIdentity {
        let own = self.path(&letter.to_string());
        ServerIdentity::open(&tls::Config {
            cert: Some(own.join("cert.pem")),
            key: Some(own.join("key.pem")),
            directory: Some(own),
            ..tls::Config::default()
        })
        .unwrap()
    }

    /// Starts server `a` alone.
    pub(crate) fn alone(&self) -> Program {
        self.start('a', &[]).0
    }

    /// Starts both servers, which do not know each other: and where their metrics are.
    pub(crate) fn both(&self) -> [(Program, SocketAddr); 2] {
        ['a', 'b'].map(|letter| self.start(letter, &[]))
    }

    /// Starts both servers as a fleet, and waits until they know each other.
    pub(crate) fn fleet(&self, engine: Engine) -> [(Program, SocketAddr); 2] {
        let servers = ['a', 'b'].map(|letter| {
            let file = |name: &str| self.path(name).display().to_string();
            let mut settings = vec![
                format!("cluster.name={letter}"),
                format!("cluster.advertise={}", self.member(letter).public),
                "cluster.steer=false".to_owned(),
            ];
            match engine {
                Engine::Static => settings.extend([
                    "cluster.engine=static".to_owned(),
                    format!("cluster.static.members={}", file("members.toml")),
                    format!("cluster.static.secret_file={}", file("secret")),
                ]),
                Engine::Nats(port) => settings.extend([
                    "cluster.engine=nats".to_owned(),
                    format!("cluster.nats.urls=nats://127.0.0.1:{port}"),
                ]),
            }
            self.start(letter, &settings)
        });
        for (server, metrics) in &servers {
            let end = Instant::now() + PATIENCE;
            while metric(*metrics, "ncserverd_cluster_members") != Some(2.0) {
                assert!(Instant::now() < end, "{}", server.said());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        servers
    }

    fn start(&self, letter: char, settings: &[String]) -> (Program, SocketAddr) {
        let (own, member) = (self.path(&letter.to_string()), self.member(letter));
        let program = &self.programs[usize::from(letter == 'b')];
        let mut command = serve(program, &member.listens.to_string(), &own);
        command.arg("--config").arg(own.join("config.toml"));
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        let program = Program::start(&mut command);
        let [metrics] = program.says(["metrics on http://"]);
        program.says(["\"started\""]);
        (
            program,
            metrics.trim_end_matches("/metrics").parse().unwrap(),
        )
    }

    /// The URL of a server, with its certificate.
    pub(crate) fn url(&self, letter: char) -> String {
        let member = self.member(letter);
        format!("ncs://{}#{}", member.public, member.pin)
    }

    /// Runs `ncpeer fetch`: whether it succeeds with the right object, and what it says.
    pub(crate) fn fetch(&self, ncpeer: &Path, url: &str, act: &Act) -> (bool, String) {
        let out = self.path("out");
        let _ = std::fs::remove_file(&out);
        let mut command = Command::new(ncpeer);
        command.env_clear().args(["fetch", url, act.path, "-o"]);
        command
            .arg(&out)
            .args(act.flags)
            .current_dir(self.folder.path());
        let run = command.output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        if run.status.success() {
            assert!(std::fs::read(&out).unwrap() == object(act.path), "{said}");
        }
        (run.status.success(), said)
    }
}

/// A gateway, and a player at it.
pub(crate) struct Player {
    gateway: Program,
    http: SocketAddr,
}

impl Player {
    pub(crate) fn new(ncpeer: &Path, url: &str) -> Self {
        let [port] = free_ports();
        let http = SocketAddr::from(([127, 0, 0, 1], port));
        let mut command = Command::new(ncpeer);
        command.env_clear().args(["gateway", url, "--ahead", "0"]);
        command.args(["--listen", &http.to_string()]);
        Self {
            gateway: Program::start(&mut command),
            http,
        }
    }

    /// Plays the beginning, from the first server.
    pub(crate) fn starts(&self) {
        get_right(self.http, "/live/list.m3u8");
        get_right(self.http, "/live/1.ts");
    }

    /// Gets a segment, while `leaves` ends that server before it has sent it, and then the playlist
    /// again.
    pub(crate) fn goes_on(&self, leaves: impl FnOnce()) {
        self.goes_on_with("/live/0.ts", leaves);
    }

    /// The same with this segment.
    pub(crate) fn goes_on_with(&self, path: &str, leaves: impl FnOnce()) {
        let http = self.http;
        std::thread::scope(|scope| {
            let gets = scope.spawn(move || get_right(http, path));
            std::thread::sleep(REQUESTS_WITHIN);
            leaves();
            gets.join().unwrap();
        });
        get_right(http, "/live/list.m3u8");
    }

    /// Gets an object.
    pub(crate) fn gets(&self, path: &str) {
        get_right(self.http, path);
    }

    pub(crate) fn ends(mut self) {
        self.gateway.signal("TERM");
        let end = Instant::now() + PATIENCE;
        while self.gateway.has_ended().is_none() {
            assert!(Instant::now() < end, "{}", self.gateway.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A player gets the object. Its bytes are right.
fn get_right(http: SocketAddr, path: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        match get(http, path) {
            Ok(body) => return assert!(body == object(path), "{path}"),
            Err(error) => assert!(Instant::now() < end, "{path}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
