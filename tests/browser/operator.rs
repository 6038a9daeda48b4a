//! The page for operators, and that of a gateway, in Chromium.

use std::fs;
use std::process::Command;

use nctest::chromium::{self, Chromium};
use nctest::program::Program;
use serde_json::json;
use tempfile::TempDir;

use crate::program::program;

/// A server with two streams, and a gateway.
struct Lab {
    _programs: [Program; 2],
    page: String,
    player: String,
    _folders: [TempDir; 2],
}

impl Lab {
    fn open() -> Self {
        let (media, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::write(media.path().join("clip.ts"), vec![7; 300_000]).unwrap();
        let mut command =
            nctest::program::serve(&program("ncserverd"), "127.0.0.1:0", state.path());
        let config = state.path().join("test.toml");
        let text = format!(
            "[telemetry]\nlog_format = \"json\"\n[ring]\nbytes = \"16MiB\"\n\
             [stream.live]\ndirectory = {:?}\n[stream.vod]\ndirectory = {:?}\n",
            media.path(),
            media.path()
        );
        fs::write(&config, text).unwrap();
        command.arg("--config").arg(config);
        let server = Program::start(&mut command);
        let [page] = server.says(["metrics on "]);
        let [url, fingerprint] = server.says(["gateway ", "--fingerprint "]);
        let mut command = Command::new(program("ncpeer"));
        command.args(["gateway", &url, "--fingerprint", &fingerprint]);
        let gateway = Program::start(command.args(["--listen", "127.0.0.1:0"]));
        let [player] = gateway.says(["is served at "]);
        Self {
            _programs: [server, gateway],
            page: page.replace("/metrics", "/"),
            player,
            _folders: [media, state],
        }
    }
}

#[test]
fn the_operators_page_works_in_a_browser() {
    if !chromium::is_there() {
        return;
    }
    let (lab, folder) = (Lab::open(), TempDir::new().unwrap());
    let mut browser = Chromium::start(folder.path());
    browser.call("Page.navigate", json!({"url": lab.page}));
    browser.wait_for("document.getElementById('link')?.textContent === 'live'");
    browser.wait_for("document.querySelectorAll('#streams tr').length === 2");
    browser.wait_for("document.getElementById('status').textContent === 'ready'");
    let text = |id: &str| format!("document.getElementById('{id}').textContent");

    // Names and texts are no markup, whatever they contain.
    let markup = "import('./page.js').then(({ fill, at }) => { \
                  fill(at('sources'), [['a', ['<img src=x>', '<b>']]]); \
                  return at('sources').rows[0].cells[0].textContent + document.images.length; })";
    assert_eq!(browser.value(markup), "<img src=x>0");
    assert_eq!(
        browser.value("document.querySelectorAll('#devices tr').length"),
        1
    );
    browser.wait_for("document.getElementById('events').textContent.includes('started')");
    browser.wait_for("document.getElementById('encode').textContent !== '–'");
    let label = "document.getElementById('encode-graph').getAttribute('aria-label')";
    browser.wait_for(&format!("{label}.startsWith('Encode over the last')"));

    // By keyboard: the first stop is the link that skips to the content.
    let tab = json!({"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9});
    browser.call("Input.dispatchKeyEvent", tab);
    assert_eq!(browser.value("document.activeElement.className"), "skip");
    let place = browser.value("document.activeElement.getBoundingClientRect().left");
    assert!(place.as_f64().unwrap() >= 0.0, "it is seen: {place}");
    browser.value("document.activeElement.click()");
    browser.wait_for("document.activeElement.id === 'main'");
    // Tables and graphs have names, and cells their headers.
    let nameless = "[...document.querySelectorAll('table')].filter(t => !t.caption).length \
                    + [...document.querySelectorAll('svg')].filter(s => \
                      !s.getAttribute('aria-label') && !s.ariaHidden).length \
                    + [...document.querySelectorAll('tbody tr')].filter(r => \
                      r.cells[0].scope !== 'row').length";
    assert_eq!(browser.value(nameless), 0);

    // Both colour schemes, with text that can be read.
    let colours = "[getComputedStyle(document.body).color, \
                   getComputedStyle(document.body).backgroundColor].join()";
    let schemes = ["light", "dark"].map(|scheme| {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        browser.call("Emulation.setEmulatedMedia", json!({"features": [feature]}));
        browser.value(colours).as_str().unwrap().to_owned()
    });
    assert_ne!(schemes[0], schemes[1]);

    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");

    browser.call(
        "Page.navigate",
        json!({"url": format!("{}status", lab.player)}),
    );
    browser.wait_for("document.querySelectorAll('#sources tr').length === 1");
    browser.wait_for(&format!("{} === 'connected'", text("status")));
    browser.value("fetch('/live/clip.ts').then(a => a.arrayBuffer())");
    browser.wait_for("document.getElementById('played')?.textContent.includes('/live/clip.ts')");
    browser.wait_for("document.getElementById('verified')?.textContent === '1'");
    // The policy of the page lets it fetch from the gateway itself.
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");

    // What the policy keeps out would have been noticed.
    browser.value("document.body.setAttribute('style', 'color: red')");
    assert!(!browser.complaints().is_empty());
}

/// When the server has gone the page says so.
#[test]
fn the_page_says_that_the_server_is_away() {
    if !chromium::is_there() {
        return;
    }
    let (lab, folder) = (Lab::open(), TempDir::new().unwrap());
    let mut browser = Chromium::start(folder.path());
    browser.call("Page.navigate", json!({"url": lab.page}));
    browser.wait_for("document.getElementById('link')?.textContent === 'live'");
    drop(lab);
    browser.wait_for("document.getElementById('link').textContent.startsWith('connection lost')");
}
