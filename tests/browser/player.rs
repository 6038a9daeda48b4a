//! The pages that the program serves to viewers: the player of `web.listen`, and the demo's.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nctest::chromium::{self, Chromium};
use nctest::process::Process;
use nctest::program::Program;
use serde_json::json;
use tempfile::TempDir;

use crate::program::program;

#[test]
fn the_player_plays_what_its_link_names() {
    if !chromium::is_there() {
        return;
    }
    let (state, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/clip");
    let mut command = nctest::program::serve(&program("ncserverd"), "127.0.0.1:0", state.path());
    command.args(["--directory", &format!("live={clip}")]);
    for setting in ["web.listen=127.0.0.1:0", "ring.bytes=16MiB"] {
        command.args(["--set", setting]);
    }
    let server = Program::start(&mut command);
    let [link] = server.says(["viewers play at "]);
    let [site, _] = link.split("?play=").collect::<Vec<_>>()[..] else {
        panic!("no link in {link}");
    };
    let mut browser = Chromium::start(folder.path());
    browser.call("Page.navigate", json!({ "url": site }));
    browser.wait_for("document.getElementById('form') !== null");
    let asked = "document.getElementById('path').checkValidity()";
    assert_eq!(browser.value(asked), false, "nothing is played unasked");

    let url = format!("{site}?play=/live/master.m3u8#token=none");
    browser.call("Page.navigate", json!({ "url": url }));
    let video = "document.querySelector('nc-video')?.video";
    browser.wait_for(&format!("{video}?.currentTime > 3"));
    browser.wait_for("Number(document.getElementById('received')?.textContent) > 20");
    assert_eq!(browser.value(&format!("{video}.videoWidth > 0")), true);
    assert_eq!(
        browser.value("document.getElementById('note').textContent"),
        ""
    );

    let url = format!("{site}?play=/live/nothing.m3u8");
    browser.call("Page.navigate", json!({ "url": url }));
    browser.wait_for("document.getElementById('note')?.textContent.length > 0");
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// A demonstration that runs until this is dropped, and the URL that it prints.
struct Demo {
    _process: Process,
    url: String,
}

impl Demo {
    fn start(options: &[&str]) -> Self {
        let mut command = Command::new(program("ncserverd"));
        command.args(["demo", "--web", "--listen", "127.0.0.1:0"]);
        command.args(options).stdout(Stdio::piped());
        let mut process = Process::start(&mut command);
        let output = process.0.stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let url = lines.find(|line| line.trim().starts_with("http://"));
        Self {
            url: url.expect("a URL").trim().to_owned(),
            _process: process,
        }
    }
}

#[test]
fn the_demo_page_plays_the_clip_by_both_ways() {
    if !chromium::is_there() {
        return;
    }
    let (demo, folder) = (Demo::start(&["--fast"]), TempDir::new().unwrap());
    let mut browser = Chromium::start(folder.path());
    browser.call("Page.navigate", json!({ "url": demo.url }));
    for side in ["coded", "plain"] {
        browser.wait_for(&format!("document.getElementById('{side}')?.ended"));
        for fact in ["first", "whole"] {
            let told =
                format!("document.getElementById('{side}-{fact}').textContent.endsWith('s')");
            browser.wait_for(&told);
        }
    }
    assert_eq!(
        browser.value("document.getElementById('loss').textContent"),
        "10 %"
    );
    let number = |id: &str| format!("parseFloat(document.getElementById('{id}').textContent)");
    // The clip is larger by the headers of its playlists, and by blocks that have come twice.
    let share = browser.value(&number("coded-bytes")).as_f64().unwrap();
    assert!((1.0..1.5).contains(&share), "{share}");
    browser.wait_for(&format!("{} > 0", number("plain-lost")));
    let repaired = "document.getElementById('repair-text').textContent";
    assert_ne!(browser.value(repaired), "0 lost, 0 repaired, 0 redundant");
    for plot in ["buffer", "repair"] {
        let lines = format!("document.querySelectorAll('#{plot} path').length");
        assert_eq!(browser.value(&lines), 3, "{plot}");
    }
    browser.value("document.getElementById('again').click()");
    browser.wait_for(
        "document.getElementById('coded').currentTime > 1 && \
                      !document.getElementById('coded').ended",
    );
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
