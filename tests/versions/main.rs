//! What programs of released versions say, from recordings, is understood by those of today, and
//! answered so that the recorded side has what it wanted.
//!
//! `0.1.0.txt` and its like hold what `ncpeer` and `ncserverd` of a version said to each other
//! (`record.rs`). `make record-exchange VERSION=0.1.0` makes one. The recorded client's bytes go to
//! today's server (`viewer.rs`), and the recorded server's bytes to today's client (`sender.rs`),
//! over QUIC: as they were recorded, and with additions that a later version may make (`later.rs`).
//!
//! `make mixed FROM=v0.1.0` has programs of that tag or commit and of today serve each other
//! (`mixed.rs`).

mod later;
mod mixed;
mod place;
#[path = "../program/mod.rs"]
mod program;
mod record;
mod sender;
mod tap;
mod viewer;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use later::Age;
use ncserverd::wire::CloseCode;
use nctest::program::PATIENCE;
use place::{ACTS, Act, Engine, Place, Player, Plot, Way, chosen};
use program::program;
use record::{Scene, Sent, Side};
use sender::Sender;
use tap::{Loss, Notes};

/// The recordings, by their versions.
fn recordings() -> Vec<(String, Vec<Scene>)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "there are recordings");
    let read = |path: &PathBuf| {
        let version = path.file_stem().unwrap().to_string_lossy().into_owned();
        let scenes = Scene::read_all(&std::fs::read_to_string(path).unwrap());
        (version, scenes)
    };
    files.iter().map(read).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/versions")
}

fn act(name: &str) -> &'static Act {
    ACTS.iter()
        .find(|act| act.name == name)
        .unwrap_or_else(|| panic!("scene {name} is gone"))
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_clients_are_served() {
    clients_are_served(Age::AsRecorded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_clients_are_served_with_additions() {
    clients_are_served(Age::Later).await;
}

async fn clients_are_served(age: Age) {
    // One server for all scenes that do not end theirs.
    let place = Place::new([&*program("ncserverd"); 2], Way::Direct);
    let _server = blocking(|| place.alone());
    for (version, scenes) in recordings() {
        for scene in scenes {
            println!("{version}: {}", scene.name);
            let moves = act(&scene.name).plot == Plot::Moves;
            let fleet = moves.then(|| {
                let place = Place::new([&*program("ncserverd"); 2], Way::Direct);
                let servers = blocking(|| place.fleet(Engine::Static));
                (place, servers)
            });
            let shapes = viewer::shapes(&scene);
            for conversation in &scene.conversations {
                let place = fleet.as_ref().map_or(&place, |(place, _)| place);
                let member = place.member(conversation.server);
                let ends = || {
                    fleet
                        .iter()
                        .for_each(|(_, [(first, _), _])| first.signal("TERM"))
                };
                viewer::play(member, conversation, &shapes, age, ends).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_servers_serve() {
    servers_serve(Age::AsRecorded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_servers_serve_with_additions() {
    servers_serve(Age::Later).await;
}

async fn servers_serve(age: Age) {
    let ncpeer = program("ncpeer");
    let place = Place::new([&*program("ncserverd"); 2], Way::Direct);
    for (version, scenes) in recordings() {
        for scene in scenes {
            println!("{version}: {}", scene.name);
            let act = act(&scene.name);
            let second = Sender::start(&scene, 'b', age, None);
            let first = Sender::start(&scene, 'a', age, Some(&second));
            let url = first.url();
            match act.plot {
                Plot::Gets | Plot::Misses => {
                    let (succeeds, said) = blocking(|| place.fetch(&ncpeer, &url, act));
                    assert_eq!(succeeds, act.plot == Plot::Gets, "{}: {said}", scene.name);
                }
                // The recorded server had no answer to that.
                Plot::GivesUp => continue,
                Plot::Moves => {
                    let player = Player::new(&ncpeer, &url);
                    blocking(|| {
                        player.starts();
                        player.goes_on(|| first.leave());
                        player.ends();
                    });
                }
            }
            // No client has found fault with the servers, one of which may have gone first.
            let done = u64::from(CloseCode::Done.quic());
            let mut ends = ended(&first).await;
            if act.plot == Plot::Moves {
                ends.extend(ended(&second).await);
            }
            assert!(
                ends.iter().flatten().all(|end| *end == done),
                "{}: {ends:?}",
                scene.name
            );
        }
    }
}

/// How the connections to this server have ended, once one has.
async fn ended(server: &Sender) -> Vec<Option<u64>> {
    let end = Instant::now() + PATIENCE;
    while server.ends().is_empty() {
        assert!(Instant::now() < end, "the client does not close");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.ends()
}

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Without these, a replay would show little.
#[test]
fn recordings_have_what_they_are_for() {
    for (version, scenes) in recordings() {
        let events = scenes
            .iter()
            .flat_map(|scene| &scene.conversations)
            .flat_map(|conversation| &conversation.events);
        let (mut client, mut server, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        for (side, sent) in events {
            match (side, sent) {
                (Side::Client, Sent::Control(bytes)) => {
                    client.push(record::number(bytes).unwrap().0)
                }
                (Side::Server, Sent::Control(bytes)) => {
                    server.push(record::number(bytes).unwrap().0)
                }
                (Side::Server, Sent::Datagram(bytes)) => blocks.push(bytes[0]),
                _ => {}
            }
        }
        // HELLO, AUTH, SUBSCRIBE, REQUEST, CREDIT, STOP, RANK, GET, GET_HASHES.
        for kind in [0x00, 0x02, 0x06, 0x10, 0x12, 0x14, 0x17, 0x24, 0x26] {
            assert!(
                client.contains(&kind),
                "{version}: no {kind:#04x} of a client"
            );
        }
        // HELLO, GRANT, SUBSCRIBE_OK, ERROR, META, GOAWAY, ALTERNATES.
        for kind in [0x00, 0x04, 0x08, 0x0a, 0x0e, 0x22, 0x33] {
            assert!(
                server.contains(&kind),
                "{version}: no {kind:#04x} of a server"
            );
        }
        // Systematic, seeded, explicit, of a parity block, a symbol. Those over the prime field
        // come on streams.
        for kind in [0x40, 0x41, 0x42, 0x44, 0x45] {
            assert!(
                blocks.contains(&kind),
                "{version}: no block of kind {kind:#04x}"
            );
        }
    }
}

/// Writes a recording of the version in `RECORD_VERSION`, with the programs of this build or those
/// in `OLD_NCPEER` and `OLD_NCSERVERD`, which have to be of that version.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes into the repository"]
async fn record() {
    let version = std::env::var("RECORD_VERSION").expect("RECORD_VERSION has a version");
    let ncpeer = chosen("ncpeer", "OLD_NCPEER");
    let ncserverd = chosen("ncserverd", "OLD_NCSERVERD");
    for program in [&ncpeer, &ncserverd] {
        let said = std::process::Command::new(program)
            .arg("--version")
            .output()
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert_eq!(
            said.split_whitespace().nth(1),
            Some(&*version),
            "{}",
            program.display()
        );
    }
    let mut text = format!(
        "# What ncpeer {version} and ncserverd {version} say to each other, by\n\
         # `make record-exchange VERSION={version}`. tests/versions/record.rs says how to read \
         it.\n"
    );
    for act in &ACTS {
        println!("{}", act.name);
        let conversations = recorded(act, &ncpeer, &ncserverd).await;
        let name = act.name.to_owned();
        Scene {
            name,
            conversations,
        }
        .write(&mut text);
    }
    std::fs::write(folder().join(format!("{version}.txt")), text).unwrap();
}

/// Has the programs play a scene through taps.
async fn recorded(act: &Act, ncpeer: &Path, ncserverd: &Path) -> Vec<record::Conversation> {
    let place = Place::new([ncserverd; 2], Way::Tapped);
    let notes = Notes::default();
    for letter in ['a', 'b'] {
        let member = place.member(letter);
        let server = (letter, member.listens, member.pin);
        let identity = place.identity(letter);
        // The way to server `b` loses nothing.
        let loss = if letter == 'a' {
            act.loss
        } else {
            Loss::Nothing
        };
        tap::start(member.public, server, &identity, loss, &notes);
    }
    let url = place.url('a');
    match act.plot {
        Plot::Gets | Plot::Misses | Plot::GivesUp => {
            let _server = blocking(|| place.alone());
            let (succeeds, said) = blocking(|| place.fetch(ncpeer, &url, act));
            assert_eq!(succeeds, act.plot == Plot::Gets, "{}: {said}", act.name);
        }
        Plot::Moves => {
            let servers = blocking(|| place.fleet(Engine::Static));
            let player = Player::new(ncpeer, &url);
            blocking(|| {
                player.starts();
                notes.lose();
                player.goes_on(|| servers[0].0.signal("TERM"));
                player.ends();
            });
        }
    }
    // The last frames are written down.
    tokio::time::sleep(Duration::from_millis(300)).await;
    notes.conversations()
}
