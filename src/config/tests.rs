use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use tempfile::TempDir;

use super::*;
use crate::directory::Policy;
use crate::machine::Machine;
use crate::object::{Codec, HashGroup};
use crate::ring::Capacity;

fn pairs(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Loads a file with this text, with these variables and overrides.
fn load(
    text: &str,
    environment: &[(&str, &str)],
    overrides: &[(&str, &str)],
) -> Result<Loaded, Error> {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("test.toml");
    std::fs::write(&file, text).unwrap();
    Sources {
        file: Some(file),
        environment: pairs(environment),
        overrides: pairs(overrides),
        ..Sources::default()
    }
    .load()
}

fn refusal(text: &str, environment: &[(&str, &str)], overrides: &[(&str, &str)]) -> String {
    load(text, environment, overrides)
        .expect_err("this configuration is wrong")
        .to_string()
}

/// The shipped file, and its text with every commented-out key enabled.
fn documented() -> (String, String) {
    let text = include_str!("../../config/ncserverd.toml");
    let key_or_table =
        |rest: &str| rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[');
    let active = |line: &str| {
        line.strip_prefix('#')
            .filter(|rest| key_or_table(rest))
            .unwrap_or(line)
            .to_owned()
    };
    (
        text.to_owned(),
        text.lines().map(active).collect::<Vec<_>>().join("\n"),
    )
}

#[test]
fn a_word_that_is_none_of_its_keys_is_refused_with_those_that_are() {
    for (key, word, said) in [
        (
            "endpoint.congestion",
            "reno",
            "`endpoint.congestion`: `reno` is not valid: expected one of `cubic`, `bbr`, `delay`",
        ),
        (
            "telemetry.log_format",
            "xml",
            "`telemetry.log_format`: `xml` is not valid: expected one of `auto`, `pretty`, `json`",
        ),
        (
            "stream.a.peers",
            "some",
            "`stream.a.peers`: `some` is not valid: expected one of `off`, `lan`, `all`",
        ),
        (
            "telemetry.log_filter",
            "infoo",
            "`infoo` is none of off, error, warn, info, debug, trace",
        ),
        (
            "stream.a.n_max",
            "2000",
            "`stream.a.n_max`: 2000 blocks per generation: the number must be from 1 to 1024",
        ),
    ] {
        let refused = refusal("[stream.a]\ndirectory = \"y\"\n", &[], &[(key, word)]);
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn later_layers_win() {
    let file = "[ring]\nbytes = \"65MiB\"\nmax_reuse = 2\n[telemetry]\nlog_filter = \"warn\"\n\
                [store]\nbytes = \"1GiB\"\n";
    let environment = [
        ("NCSERVERD_RING__BYTES", "66MiB"),
        ("NCSERVERD_TELEMETRY__LOG_FILTER", "error"),
        ("OTHER", "x"),
    ];
    let loaded = load(
        file,
        &environment,
        &[("ring.bytes", "67MiB"), ("ring.bytes", "68MiB")],
    )
    .unwrap();
    assert_eq!(
        loaded.config.encoder,
        encoder::Config::default(),
        "defaults where nothing is said"
    );
    assert_eq!(
        loaded.config.store.bytes,
        ByteSize::gib(1),
        "the file above the defaults"
    );
    assert_eq!(loaded.config.ring.max_reuse, 2);
    assert_eq!(
        loaded.config.telemetry.log_filter, "error",
        "the environment above the file"
    );
    assert_eq!(
        loaded.config.ring.bytes,
        Capacity::Bytes(ByteSize::mib(68)),
        "flags above all, the last one first"
    );
    assert_eq!(
        loaded.places["telemetry.log_filter"],
        Location::Environment("NCSERVERD_TELEMETRY__LOG_FILTER".into())
    );
    assert_eq!(
        loaded.places["ring.bytes"],
        Location::Flag("--set ring.bytes".into())
    );
    assert!(
        matches!(
            &loaded.places["store.bytes"],
            Location::File { line: 7, .. }
        ),
        "{:?}",
        loaded.places
    );
}

#[test]
fn texts_become_what_their_keys_are() {
    let environment = [
        ("NCSERVERD_ENDPOINT__LISTEN", "127.0.0.1:1,[::1]:2"),
        ("NCSERVERD_ENDPOINT__GSO", "false"),
        ("NCSERVERD_ENCODER__BATCH_WAIT", "2s"),
        ("NCSERVERD_ENCODER__BATCH_BLOCKS_MAX", "0512"),
        ("NCSERVERD_DEVICE__CPU_THREADS", "3"),
        ("NCSERVERD_STREAM__LIVE__DIRECTORY", "/tmp/007"),
        ("NCSERVERD_CONFIG", "a flag, not a key"),
    ];
    let config = load("", &environment, &[]).unwrap().config;
    assert_eq!(
        config.endpoint.listen,
        ["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]
    );
    assert!(!config.endpoint.gso);
    assert_eq!(config.encoder.batch_wait, Duration::from_secs(2));
    assert_eq!(config.encoder.batch_blocks_max, 512);
    assert_eq!(config.device.cpu_threads.count(), 3);
    assert_eq!(
        config.stream["live"].directory.as_deref(),
        Some(Path::new("/tmp/007"))
    );
}

#[test]
fn unknown_keys_are_refused_where_they_stand() {
    let text = refusal("[ring]\nmax_reuse = 1\nbyte = \"1MiB\"\n", &[], &[]);
    assert!(
        text.ends_with("test.toml, line 3: unknown key `ring.byte`; did you mean `ring.bytes`?"),
        "{text}"
    );
    let text = refusal("", &[("NCSERVERD_TELEMETRY_LISTEN", "127.0.0.1:1")], &[]);
    assert_eq!(
        text,
        "environment variable NCSERVERD_TELEMETRY_LISTEN: unknown key `telemetry_listen`; did you \
         mean `telemetry.listen`?"
    );
    let text = refusal("", &[], &[("stream.live.n-max", "3")]);
    assert_eq!(
        text,
        "flag --set stream.live.n-max: unknown key `stream.live.n-max`; did you mean \
         `stream.live.n_max`?"
    );
    let text = refusal("[qqqq]\nzzzz = 1\n[store]\nbites = 1\n", &[], &[]);
    assert_eq!(text.lines().count(), 2, "all at once: {text}");
}

#[test]
fn wrong_values_name_key_and_place() {
    for (text, place, reason) in [
        (
            "[ring]\nbytes = \"huge\"\n",
            "line 2: `ring.bytes`",
            "`huge` is not a size such as \"512KiB\" or \"2GiB\", and not \"auto\"",
        ),
        (
            "[ring]\nbytes = -1\n",
            "line 2: `ring.bytes`",
            "a size is not negative",
        ),
        (
            "[endpoint]\nconnections_max = \"all\"\n",
            "line 2: `endpoint.connections_max`",
            "expected \"auto\" or a number of connections from 1 to",
        ),
        (
            "[endpoint]\nconnections_max = 0\n",
            "line 2: `endpoint.connections_max`",
            "expected \"auto\" or a number of connections from 1 to",
        ),
        (
            "[encoder]\nbatch_wait = \"soon\"\n",
            "line 2: `encoder.batch_wait`",
            "`soon` is not a duration such as",
        ),
        (
            "[encoder]\n\nbatch_blocks_max = -1\n",
            "line 3: `encoder.batch_blocks_max`",
            "",
        ),
        (
            "[device]\nbackend = \"tpu\"\n",
            "line 2: `device.backend`",
            "tpu",
        ),
        (
            "[endpoint]\nlisten = [\"here\"]\n",
            "line 2: `endpoint.listen`",
            "`here`",
        ),
        (
            "[stream.live]\ndirectory = \"x\"\nn_max = \"many\"\n",
            "line 3: `stream.live.n_max`",
            "many",
        ),
    ] {
        let refusal = refusal(text, &[], &[]);
        assert!(
            refusal.contains(place) && refusal.contains(reason),
            "{text:?}: {refusal}"
        );
    }
    let refusal = refusal("", &[("NCSERVERD_RING__MAX_REUSE", "99999")], &[]);
    assert!(
        refusal.starts_with("environment variable NCSERVERD_RING__MAX_REUSE: `ring.max_reuse`"),
        "{refusal}"
    );
}

#[test]
fn a_named_file_must_be_there_and_be_toml() {
    let absent = Sources {
        file: Some("/nonexistent/x.toml".into()),
        ..Sources::default()
    }
    .load()
    .unwrap_err();
    assert!(
        absent
            .to_string()
            .starts_with("cannot read /nonexistent/x.toml: "),
        "{absent}"
    );
    let broken = refusal("[ring\nbytes = 1", &[], &[]);
    assert!(broken.contains("line 1"), "{broken}");
    assert!(refusal("[ring]\nbytes = 1\n[ring]\n", &[], &[]).contains("duplicate key"));
}

#[test]
fn contradictions_are_refused_together() {
    let text = "[stream.a]\norigin = \"http://x/\"\ndirectory = \"y\"\n[stream.b]\n[tls]\n\
                cert = \"c\"\n[encoder]\nprefill_blocks = 0\n";
    let refusal = refusal(text, &[], &[]);
    for key in [
        "`stream.a.directory`",
        "`stream.b`",
        "`tls.cert`",
        "`encoder.prefill_blocks`",
    ] {
        assert!(refusal.contains(key), "{key} is not in {refusal}");
    }
}

#[test]
fn the_page_for_operators_needs_whole_pairs_and_real_names() {
    let file = "[telemetry]\ncertificate = \"c.pem\"\nhosts = [\"ops.example\", \"a b\"]\n";
    let refusal = refusal(file, &[], &[]);
    for key in ["`telemetry.certificate`", "`telemetry.hosts`"] {
        assert!(refusal.contains(key), "{key} is not in {refusal}");
    }
    let file = "[telemetry]\nlisten = \"0.0.0.0:9443\"\ncredential = \"c\"\n";
    let loaded = load(file, &[], &[]).unwrap();
    let is_about = |key: &str| loaded.findings.iter().any(|finding| finding.key == key);
    assert!(is_about("telemetry.listen") && is_about("telemetry.credential"));
    let credential = loaded.config.telemetry.credential.unwrap();
    assert!(
        credential.is_absolute(),
        "a later change of directory does not matter"
    );
}

#[test]
fn a_ring_must_hold_a_batch_of_the_largest_block() {
    let text = "[stream.a]\ndirectory = \"y\"\nblock_bytes = 65536\n";
    let refusal = refusal(text, &[], &[("ring.bytes", "64MiB")]);
    assert!(
        refusal.contains("raise `ring.bytes` to 65MiB or lower `encoder.batch_blocks_max`"),
        "{refusal}"
    );
    for enough in ["1GiB", "auto"] {
        let loaded = load(text, &[], &[("ring.bytes", enough)]).unwrap();
        assert!(loaded.findings.is_empty(), "{enough}");
    }
    let machine = Machine {
        cores: 1,
        memory: Some(512 << 20),
    };
    let sizes = load(text, &[], &[]).unwrap().config.sizes(&machine);
    assert_eq!(sizes.ring, ByteSize::mib(129), "two batches");
}

#[test]
fn what_is_left_to_the_machine_stays_so_in_the_configuration() {
    let text = "[endpoint]\nconnections_max = \"auto\"\n[ring]\nbytes = \"auto\"\n";
    let [first, again] = [0; 2].map(|_| load(text, &[], &[]).unwrap().config);
    assert!(changes(&first, &again).is_empty());
    let default = Config::default();
    assert_eq!(
        (&first.endpoint, first.ring),
        (&default.endpoint, default.ring)
    );
    assert_eq!(load(&first.to_toml(), &[], &[]).unwrap().config, first);
    // A reload says what was and what is to be, not what `auto` came to.
    let next = load(
        "",
        &[
            ("NCSERVERD_ENDPOINT__CONNECTIONS_MAX", "20000"),
            ("NCSERVERD_RING__BYTES", "1GiB"),
        ],
        &[],
    )
    .unwrap()
    .config;
    let changed: Vec<_> = changes(&first, &next)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        changed,
        [
            "`endpoint.connections_max` from \"auto\" to 20000: needs a restart",
            "`ring.bytes` from \"auto\" to \"1GiB\": needs a restart",
        ]
    );
}

#[test]
fn the_device_must_hold_two_segments() {
    let with = |text: &str| load("", &[("NCSERVERD_STORE__DEVICE_BYTES", text)], &[]);
    assert_eq!(
        with("50%").unwrap().config.store.device_bytes,
        store::Portion::Percent(50)
    );
    assert_eq!(
        with("16MiB").unwrap().config.store.device_bytes,
        store::Portion::Bytes(ByteSize::mib(16))
    );
    assert!(
        with("15MiB")
            .unwrap_err()
            .to_string()
            .contains("`store.device_bytes`: 15MiB cannot hold two segments")
    );
    assert!(
        with("120%")
            .unwrap_err()
            .to_string()
            .contains("`120%` is not a percentage from 1% to 100% or a size")
    );
}

#[test]
fn blocks_that_only_just_fit_a_datagram_are_remarked_on() {
    let with = |block_bytes: &str, n_max: &str| {
        let overrides = [
            ("stream.a.directory", "y"),
            ("stream.a.block_bytes", block_bytes),
            ("stream.a.n_max", n_max),
        ];
        let findings = load("", &[], &overrides).unwrap().findings;
        findings
            .into_iter()
            .map(|finding| finding.text)
            .collect::<Vec<_>>()
            .join(";")
    };
    assert_eq!(with("1088", "64"), "");
    assert!(with("1136", "64").contains("cannot relay over datagrams"));
    assert!(with("1392", "64").contains("only after path MTU discovery"));
    assert_eq!(with("4096", "128"), "");
}

#[test]
fn too_few_coefficients_are_refused_unless_forced() {
    let with = |weight: &str, n_max: &str, force: &str| {
        let overrides = [
            ("stream.a.directory", "y"),
            ("stream.a.row_weight", weight),
            ("stream.a.n_max", n_max),
            ("stream.a.row_weight_force", force),
        ];
        let texts = |loaded: Loaded| {
            loaded
                .findings
                .into_iter()
                .map(|finding| finding.to_string())
                .collect::<Vec<_>>()
                .join(";")
        };
        load("", &[], &overrides)
            .map(texts)
            .map_err(|error| error.to_string())
    };
    assert_eq!(with("13", "128", "false"), Ok(String::new()));
    let refusal = with("12", "128", "false").unwrap_err();
    assert!(
        refusal.contains("`stream.a.row_weight`: 12 nonzero coefficients")
            && refusal.contains("at least 13 (ln n + 8)"),
        "{refusal}"
    );
    assert!(with("12", "32", "false").is_ok(), "the rule is about n_max");
    assert!(
        with("12", "128", "true")
            .unwrap()
            .contains("`stream.a.row_weight`: forced")
    );
    // Peers would disconnect because of redundant blocks.
    assert!(
        with("7", "128", "true").is_ok()
            && with("6", "128", "true")
                .unwrap_err()
                .contains("set at least 7")
    );
    assert!(with("4", "4", "true").is_ok(), "these rows are dense");
    for force in ["false", "true"] {
        assert!(
            with("0", "128", force)
                .unwrap_err()
                .contains("must not be all zeros")
        );
    }
    assert!(
        with("64", "64", "false")
            .unwrap()
            .contains("all rows are dense")
    );
}

#[test]
fn what_belongs_to_another_code_is_refused() {
    let with = |keys: &[(&str, &str)]| {
        let keys: Vec<_> = keys
            .iter()
            .map(|(key, value)| (format!("stream.a.{key}"), *value))
            .collect();
        let mut overrides = vec![("stream.a.directory", "y")];
        overrides.extend(keys.iter().map(|(key, value)| (key.as_str(), *value)));
        load("", &[], &overrides)
            .map(|loaded| loaded.config.stream["a"].codec().unwrap())
            .map_err(|error| error.to_string())
    };
    assert_eq!(with(&[]), Ok(Codec::Rlnc));
    assert_eq!(with(&[("codec", "rlnc")]), Ok(Codec::Rlnc));
    assert_eq!(with(&[("codec", "raptorq")]), Ok(Codec::RaptorQ));
    let key = ("signing_key", "/run/no-such-key.pem");
    assert_eq!(
        with(&[("codec", "rlnc-q"), key]),
        Ok(Codec::RlncQ {
            group: HashGroup::P1024
        })
    );
    assert_eq!(
        with(&[("codec", "rlnc-q"), key, ("hash_bits", "2048")]),
        Ok(Codec::RlncQ {
            group: HashGroup::P2048
        })
    );
    assert_eq!(
        with(&[("codec", "rs"), ("parity", "128")]),
        Ok(Codec::ReedSolomon { parity: 128 })
    );
    for (keys, said) in [
        (
            &[("codec", "rs")][..],
            "`stream.a.codec`: codec = \"rs\" needs a fixed number",
        ),
        (
            &[("codec", "rs"), ("parity", "0")],
            "`stream.a.parity`: 0 parity blocks with 128",
        ),
        (
            &[("codec", "rs"), ("parity", "129")],
            "`stream.a.parity`: 129 parity blocks with 128",
        ),
        (
            &[("codec", "rs"), ("parity", "1"), ("n_max", "256")],
            "`stream.a.parity`: 1 parity blocks with 256",
        ),
        (
            &[("parity", "4")],
            "`stream.a.parity`: `parity` requires codec = \"rs\"",
        ),
        (
            &[("codec", "raptorq"), ("parity", "4")],
            "`stream.a.parity`: `parity` requires codec = \"rs\"",
        ),
        (
            &[("codec", "raptorq"), ("row_weight", "20")],
            "`stream.a.codec`: `row_weight` requires codec = \"rlnc\"",
        ),
        (&[("codec", "reed-solomon")], "`stream.a.codec`"),
        (
            &[("codec", "rlnc-q")],
            "`stream.a.signing_key`: codec = \"rlnc-q\" needs a key that signs",
        ),
        (
            &[("codec", "rlnc-q"), key, ("parity", "4")],
            "`stream.a.parity`: `parity` requires codec = \"rs\"",
        ),
        (
            &[("codec", "rlnc-q"), key, ("row_weight", "20")],
            "`stream.a.codec`: `row_weight` requires",
        ),
        (
            &[("codec", "rlnc-q"), key, ("hash_bits", "1536")],
            "`stream.a.hash_bits`: homomorphic hashes must have 1024 bits",
        ),
        (
            &[("hash_bits", "1024")],
            "`stream.a.hash_bits`: `hash_bits` requires codec = \"rlnc-q\"",
        ),
        (
            &[("codec", "rlnc-q"), key, ("block_bytes", "4112")],
            "`stream.a.block_bytes`: blocks of 4112 bytes: over the prime field",
        ),
        (
            &[("codec", "rlnc-q"), key, ("n_max", "257")],
            "`stream.a.n_max`: 257 blocks per generation: over the prime field",
        ),
        (
            &[
                ("codec", "rlnc-q"),
                key,
                ("hash_bits", "2048"),
                ("block_bytes", "64"),
            ],
            "`stream.a.block_bytes`: 33554432 bytes of homomorphic hashes",
        ),
    ] {
        let refusal = with(keys).unwrap_err();
        assert!(refusal.contains(said), "{refusal}");
    }
}

#[test]
fn coefficients_count_where_blocks_must_fit() {
    let with = |n_max: &str, block_bytes: &str| {
        let overrides = [
            ("stream.a.directory", "y"),
            ("stream.a.row_weight", "15"),
            ("stream.a.n_max", n_max),
            ("stream.a.block_bytes", block_bytes),
            ("ring.bytes", "64MiB"),
        ];
        load("", &[], &overrides).map(|loaded| {
            loaded
                .findings
                .into_iter()
                .map(|finding| finding.text)
                .collect::<Vec<_>>()
                .join(";")
        })
    };
    assert_eq!(with("64", "1088").unwrap(), "");
    assert!(
        with("128", "1088")
            .unwrap()
            .contains("only after path MTU discovery")
    );
    assert!(
        with("512", "1088")
            .unwrap()
            .contains("with the coefficients of a sparse row")
    );
    assert_eq!(with("128", "4096").unwrap(), "");
    let refusal = with("1024", "64512").unwrap_err().to_string();
    assert!(refusal.contains("raise `ring.bytes` to 65MiB"), "{refusal}");
}

#[test]
fn who_is_admitted_is_said_before_others_reach_the_server() {
    let reachable = [("endpoint.listen", "[::]:4443")];
    let with = |more: &[(&str, &str)]| load("", &[], &[&reachable[..], more].concat());
    let refused = with(&[]).unwrap_err().to_string();
    assert!(
        refused.contains("`endpoint.listen`") && refused.contains("`admission.insecure = true`"),
        "{refused}"
    );
    let warnings = |more: &[(&str, &str)]| {
        with(more).map(|loaded| {
            loaded
                .findings
                .into_iter()
                .map(|finding| finding.key)
                .collect::<Vec<_>>()
                .join(" ")
        })
    };
    assert_eq!(warnings(&[("admission.keys", "keys.json")]).unwrap(), "");
    assert_eq!(warnings(&[("admission.clients_ca", "ca.pem")]).unwrap(), "");
    assert_eq!(warnings(&[("admission.insecure", "true")]).unwrap(), "");
    assert_eq!(
        warnings(&[
            ("admission.keys", "http://a.example/"),
            ("admission.insecure", "true")
        ])
        .unwrap(),
        "admission.keys admission.insecure"
    );
    assert!(
        warnings(&[
            ("admission.keys", "keys.json"),
            ("admission.required", "false")
        ])
        .is_err()
    );
    let overrides = [
        ("admission.keys", "keys.json"),
        ("admission.required", "false"),
        ("admission.audience", "us"),
    ];
    let findings = load("", &[], &overrides).unwrap().findings;
    assert!(
        findings.len() == 1 && findings[0].key == "admission.required",
        "{findings:?}"
    );
    for (key, value) in [
        ("admission.keys", "ftp://a.example/"),
        ("admission.refresh", "0s"),
        ("admission.token_connections_max", "0"),
        ("admission.address_connections_max", "0"),
        ("admission.token_bytes_per_second", "0B"),
        ("admission.address_bytes_per_second", "0B"),
    ] {
        let refused = refusal("", &[], &[(key, value)]);
        assert!(refused.contains(&format!("`{key}`")), "{refused}");
    }
    let config = load(
        "",
        &[],
        &[
            ("admission.keys", "keys.json"),
            ("admission.token_bytes_per_second", "2MiB"),
        ],
    )
    .unwrap()
    .config;
    assert!(Path::new(config.admission.keys.clone().unwrap().expose()).is_absolute());
    assert_eq!(
        config.admission.token_bytes_per_second,
        Some(ByteSize::mib(2))
    );
    assert_eq!(load(&config.to_toml(), &[], &[]).unwrap().config, config);
}

#[test]
fn a_signing_key_is_one_or_will_be_made() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("live.pem");
    let with = |path: &Path| {
        load(
            "[stream.live]\norigin = \"http://o/\"\n",
            &[],
            &[("stream.live.signing_key", path.to_str().unwrap())],
        )
    };
    let loaded = with(&path).unwrap();
    assert!(
        loaded.findings.len() == 1 && loaded.findings[0].key == "stream.live.signing_key",
        "{:?}",
        loaded.findings
    );
    let text = loaded.explain();
    assert!(
        text.contains(&format!(
            "signed by a key that the server will create as {}",
            path.display()
        )),
        "{text}"
    );
    assert!(!path.exists(), "checking makes nothing");

    let pem = crate::integrity::signing::SigningKey::generate(&mut rand::rng());
    let key = crate::integrity::signing::SigningKey::from_pem(pem.as_bytes())
        .unwrap()
        .public();
    std::fs::write(&path, pem).unwrap();
    let loaded = with(&path).unwrap();
    assert!(
        loaded.findings.is_empty()
            && loaded
                .explain()
                .contains(&format!("(512 KiB), signed by {key}\n"))
    );

    std::fs::write(&path, "no key").unwrap();
    for wrong in [path.as_path(), directory.path()] {
        let refused = with(wrong).unwrap_err().to_string();
        assert!(
            refused.starts_with("`stream.live.signing_key`: cannot use "),
            "{refused}"
        );
    }
    let relative = with(Path::new("live.pem")).unwrap().config;
    assert!(
        relative.stream["live"]
            .signing_key
            .as_ref()
            .unwrap()
            .is_absolute()
    );
}

#[test]
fn viewers_are_named_to_each_other_where_the_stream_is_signed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("live.pem");
    std::fs::write(
        &path,
        crate::integrity::signing::SigningKey::generate(&mut rand::rng()),
    )
    .unwrap();
    let stream = "[stream.live]\norigin = \"http://o/\"\n";
    for (word, policy) in [
        ("off", Policy::Off),
        ("lan", Policy::Lan),
        ("all", Policy::All),
    ] {
        let keys = [
            ("stream.live.peers", word),
            ("stream.live.signing_key", path.to_str().unwrap()),
        ];
        assert_eq!(
            load(stream, &[], &keys).unwrap().config.stream["live"].peers,
            policy
        );
        let unsigned = load(stream, &[], &keys[..1]);
        match unsigned {
            Ok(loaded) => assert_eq!(loaded.config.stream["live"].peers, Policy::Off),
            Err(error) => assert!(
                error.to_string().starts_with("`stream.live.peers`: ") && policy != Policy::Off,
                "{error}"
            ),
        }
    }
    assert!(load(stream, &[], &[("stream.live.peers", "some")]).is_err());
}

#[test]
fn a_printed_configuration_loads_to_itself() {
    let overrides = [
        ("ring.bytes", "67109888"),
        ("encoder.batch_wait", "1m 2ms"),
        ("stream.Live-1.directory", "a b"),
        ("stream.Live-1.row_weight", "20"),
        ("tls.names", "a.example,b.example"),
    ];
    let config = load("", &[("HOME", "/home/somebody")], &overrides)
        .unwrap()
        .config;
    assert_eq!(config.ring.bytes, Capacity::Bytes(ByteSize(67_109_888)));
    assert_eq!(
        config.tls.directory.as_deref(),
        Some(Path::new("/home/somebody/.local/state/ncserverd/tls"))
    );
    assert_eq!(load(&config.to_toml(), &[], &[]).unwrap().config, config);
}

#[test]
fn the_documented_file_is_the_defaults() {
    let (text, _) = documented();
    let parsed: Config = toml::from_str(&text).unwrap();
    assert_eq!(parsed, Config::default());
    assert!(load(&text, &[], &[]).unwrap().findings.is_empty());
    let given: toml::Table = text.parse().unwrap();
    for (key, default) in schema::flatten(&Config::default()) {
        let stands = key
            .split('.')
            .try_fold(&toml::Value::Table(given.clone()), |table, part| {
                table.get(part)
            })
            .is_some();
        assert!(
            stands || default.is_null() || key == "stream",
            "`{key}` is not in config/ncserverd.toml"
        );
    }
}

#[test]
fn the_documented_file_names_every_key() {
    let (_, active) = documented();
    let loaded = load(&active, &[], &[]);
    assert!(
        !matches!(
            loaded,
            Err(Error::Unknown(_) | Error::Value { .. } | Error::Syntax { .. })
        ),
        "{loaded:?}"
    );
    let places = layers::FileLayer::parse(Path::new("ncserverd.toml"), active)
        .unwrap()
        .places;
    let mut missing = schema::defaults();
    missing.retain(|key, _| {
        let (before, after) = key.split_once(schema::ANY).unwrap_or((key, ""));
        !places
            .keys()
            .any(|place| place.starts_with(before) && place.ends_with(after))
    });
    assert!(
        missing.is_empty(),
        "not in config/ncserverd.toml: {:?}",
        missing.keys()
    );
}

#[test]
fn documented_stream_keys_have_their_defaults() {
    let (_, active) = documented();
    let documented: toml::Table = active.parse().unwrap();
    let streams = documented["stream"].as_table().unwrap();
    let defaults = serde_json::to_value(stream::Config::default()).unwrap();
    let written = serde_json::to_value(streams["live"].clone()).unwrap();
    for (key, default) in defaults
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, default)| !default.is_null())
    {
        assert_eq!(written.get(key), Some(default), "stream.live.{key}");
    }
}

#[test]
fn every_shipped_file_loads() {
    for entry in std::fs::read_dir("config").unwrap() {
        let file = entry.unwrap().path();
        let loaded = Sources {
            file: Some(file.clone()),
            ..Sources::default()
        }
        .load();
        assert!(
            loaded.is_ok(),
            "{}: {}",
            file.display(),
            loaded.unwrap_err()
        );
    }
}

#[test]
fn an_origin_that_ends_in_a_playlist_is_remarked_on() {
    let findings = |url: &str| {
        load(&format!("[stream.live]\norigin = \"{url}\"\n"), &[], &[])
            .unwrap()
            .findings
    };
    for url in ["http://o/hls/master.m3u8", "https://o/dash/live.MPD"] {
        let found = findings(url);
        assert!(
            found.len() == 1
                && found[0]
                    .to_string()
                    .starts_with("`stream.live.origin`: must be the folder"),
            "{found:?}"
        );
    }
    assert!(findings("http://o/hls/").is_empty());
}

#[test]
fn a_reload_knows_what_can_change() {
    let old = load(
        "[stream.a]\ndirectory = \"x\"\n[ring]\nbytes = \"64MiB\"\n",
        &[],
        &[],
    )
    .unwrap()
    .config;
    let text = "[stream.a]\ndirectory = \"x\"\nsigning_key = \"a.pem\"\nn_max = 64\n\
                row_weight = 13\nretention = \"5s\"\n[stream.b]\ndirectory = \"y\"\n[encoder]\n\
                batch_wait = \"1ms\"\n[ring]\nbytes = \"65MiB\"\n";
    let new = load(text, &[], &[]).unwrap().config;
    let found = changes(&old, &new);
    let effect = |key: &str| {
        found
            .iter()
            .find(|change| change.key == key)
            .map(|change| change.effect)
    };
    assert_eq!(effect("stream.a.n_max"), Some(Effect::NewSegments));
    assert_eq!(effect("stream.a.row_weight"), Some(Effect::NewSegments));
    assert_eq!(effect("stream.a.retention"), Some(Effect::Live));
    assert_eq!(effect("stream.a.signing_key"), Some(Effect::Live));
    assert_eq!(effect("stream.b.directory"), Some(Effect::Live));
    assert_eq!(effect("encoder.batch_wait"), Some(Effect::Live));
    assert_eq!(effect("ring.bytes"), Some(Effect::Restart));
    assert_eq!(effect("stream.a.directory"), None);
    assert!(changes(&old, &old.clone()).is_empty());
    let ring = found
        .iter()
        .find(|change| change.key == "ring.bytes")
        .unwrap();
    assert_eq!(
        ring.to_string(),
        "`ring.bytes` from \"64MiB\" to \"65MiB\": needs a restart"
    );
    // For an added or removed stream, only the keys that it sets are reported.
    let of_b = |changes: &[Change]| -> Vec<String> {
        changes
            .iter()
            .filter(|change| change.key.starts_with("stream.b."))
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(
        of_b(&found),
        ["`stream.b.directory` from nothing to \"y\": takes effect now"]
    );
    assert_eq!(
        of_b(&changes(&new, &old)),
        ["`stream.b.directory` from \"y\" to nothing: takes effect now"]
    );
}

#[test]
fn an_explanation_says_what_counts_and_from_where() {
    let loaded = load(
        "[stream.live]\norigin = \"http://o/\"\n[ring]\nmax_reuse = 2\n",
        &[("NCSERVERD_STORE__BYTES", "2GiB")],
        &[],
    )
    .unwrap();
    let text = loaded.explain();
    let default = &schema::defaults()["store.bytes"];
    let line = format!(
        "  store.bytes = \"2GiB\", default {default} (environment variable NCSERVERD_STORE__BYTES)"
    );
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("  ring.max_reuse = 2, default 1 ("), "{text}");
    assert!(
        text.contains(
            "  /live/ from http://o/, generations of up to 128 blocks of 4096 bytes (512 KiB)"
        ),
        "{text}"
    );
    assert!(
        Sources::default()
            .load()
            .unwrap()
            .explain()
            .contains("No stream is configured")
    );
}

#[test]
fn documents_speak_of_keys_that_exist() {
    let defaults = schema::defaults();
    let sections: BTreeSet<_> = defaults
        .keys()
        .filter_map(|key| key.split('.').next())
        .collect();
    for text in [
        include_str!("../../docs/operating.md"),
        include_str!("../../docs/metrics.md"),
    ] {
        let quoted = text.split('`').skip(1).step_by(2);
        for word in quoted.flat_map(|quoted| quoted.split([' ', '=', '{'])) {
            let is_key = word.split_once('.').is_some_and(|(section, key)| {
                sections.contains(section) && !key.contains(['/', '<'])
            });
            assert!(
                !is_key || schema::is_known(&defaults, word),
                "`{word}` is no key"
            );
        }
    }
}

#[test]
fn a_changed_secret_is_told_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth");
    let text = |first: &str, user: &str| {
        format!(
            "[admission]\nkeys = \"https://{user}:hunter2@issuer.test/\"\n[stream.a]\n\
             origin = \"http://{user}:hunter2@o.test/\"\n\
             headers.A = \"{first}\"\nheaders.B = {{ file = {file:?} }}\n\
             headers.C = {{ env = \"KEY\" }}\n"
        )
    };
    let at = |first: &str, user: &str, content: &str, variable: &str| {
        std::fs::write(&file, content).unwrap();
        load(&text(first, user), &[("KEY", variable)], &[]).unwrap()
    };
    let old = at("hunter2", "me", "hunter2-b\n", "hunter2-c");
    assert!(changes(&old.config, &old.config.clone()).is_empty());
    let new = at("hunter2-other", "you", "hunter2-bb\n", "hunter2-cc");
    let found = changes(&old.config, &new.config);
    let keys: Vec<_> = found.iter().map(|change| change.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "admission.keys",
            "stream.a.headers.A",
            "stream.a.headers.B",
            "stream.a.headers.C",
            "stream.a.origin"
        ]
    );
    let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines[1],
        "`stream.a.headers.A` changed (the value is secret): takes effect now"
    );
    let shown = [
        lines.join("\n"),
        new.explain(),
        new.config.to_toml(),
        format!("{new:?}"),
        format!("{:?}", new.config),
    ]
    .join("\n");
    assert!(
        !shown.contains("hunter2") && shown.contains("http://[hidden]@o.test/"),
        "{shown}"
    );
    assert_eq!(
        new.config.stream["a"].headers["B"].value().expose(),
        "hunter2-bb"
    );
    // A printed secret is not loaded.
    let refusal = refusal(&new.config.to_toml(), &[("KEY", "x")], &[]);
    assert!(
        refusal.contains("replace [hidden] with the secret"),
        "{refusal}"
    );
    std::fs::remove_file(&file).unwrap();
    let gone = load(&text("x", "me"), &[("KEY", "x")], &[])
        .unwrap_err()
        .to_string();
    assert!(gone.contains("line 6: `stream.a.headers.B`"), "{gone}");
}

#[test]
fn urls_are_refused_or_shown_without_their_passwords() {
    for origin in [
        "https://me:hun#hunter2@o/",
        "https://me:1?hunter2@o/",
        "http://:hunter2/",
        "ftp://me:hunter2@o/",
        "me:hunter2@o",
    ] {
        let text = refusal("", &[], &[("stream.a.origin", origin)]);
        assert!(
            text.contains("`stream.a.origin`") && !text.contains("hun"),
            "{origin}: {text}"
        );
    }
    for keys in [
        "https://me:hun#hunter2@o/",
        "http://:hunter2/",
        "ftp://me:hunter2@o/",
        "me:hunter2@o",
    ] {
        let text = refusal("", &[], &[("admission.keys", keys)]);
        assert!(
            text.contains("`admission.keys`") && !text.contains("hun"),
            "{keys}: {text}"
        );
    }
    let given = [
        ("stream.a.origin", "http:me:hunter2@o.test/"),
        ("stream.b.origin", "http:/me:hunter2@o.test/"),
        (
            "admission.keys",
            "https://issuer.test/jwks?pin=hunter2#hunter2",
        ),
    ];
    let loaded = load("", &[], &given).unwrap();
    let shown = [
        loaded.explain(),
        loaded.config.to_toml(),
        format!("{loaded:?}"),
    ]
    .join("\n");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(
        shown.contains("http://[hidden]@o.test/")
            && shown.contains("https://issuer.test/jwks?pin=[hidden]"),
        "{shown}"
    );
    let keys = load("", &[], &[("admission.keys", "http:/me:hunter2@o.test/")])
        .unwrap()
        .config
        .admission
        .keys
        .unwrap();
    assert_eq!(
        (keys.expose(), keys.to_string().as_str()),
        ("http:/me:hunter2@o.test/", "http://[hidden]@o.test/")
    );
}

#[test]
fn hidden_files_that_become_public_are_remarked_on() {
    let with = |place: &str, keys: &str| {
        let findings = load(&format!("[stream.a]\n{place}\n{keys}\n"), &[], &[])
            .unwrap()
            .findings;
        findings
            .into_iter()
            .map(|finding| finding.to_string())
            .collect::<Vec<_>>()
            .join(";")
    };
    let directory = "directory = \"y\"";
    for fine in [
        "",
        "refuse = [\".*\", \"*.key\"]",
        "allow = [\".well-known\"]",
    ] {
        assert_eq!(with(directory, fine), "", "{fine}");
    }
    let said = with(directory, "refuse = [\"*.key\", \".git\"]");
    assert!(
        said.contains(
            "`stream.a.refuse`: hidden names such as .env, .htpasswd, .ssh are published"
        ),
        "{said}"
    );
    assert!(with(directory, "allow = [\".*\"]").contains(".env, .git"));
    assert_eq!(with("origin = \"http://o/\"", "refuse = []"), "");
}

#[test]
fn pages_that_could_not_or_should_not_connect_are_mentioned() {
    let warnings = |overrides: &[(&str, &str)]| -> Vec<String> {
        let loaded = load("", &[], overrides).unwrap();
        loaded
            .findings
            .into_iter()
            .map(|finding| finding.key)
            .collect()
    };
    let page = ("web.origins", "https://video.example");
    assert!(warnings(&[page]).is_empty());
    assert_eq!(
        warnings(&[page, ("web.certificate", "tls")]),
        ["web.certificate"]
    );
    assert_eq!(warnings(&[("web.origins", "*")]), ["web.origins"]);
    let keys = ("admission.keys", "keys.json");
    assert!(warnings(&[("web.origins", "*"), keys]).is_empty());
    let here = ("web.listen", "127.0.0.1:8080");
    assert!(warnings(&[here]).is_empty());
    let elsewhere = ("web.listen", "0.0.0.0:8443");
    let refused = load("", &[], &[elsewhere]).unwrap_err().to_string();
    assert!(
        refused.contains("`tls.cert`") && refused.contains("`web.origins`"),
        "{refused}"
    );
    let refused = load("", &[], &[("web.origins", "video.example")]).unwrap_err();
    assert!(
        refused.to_string().contains("is not an origin"),
        "{refused}"
    );
}

#[test]
fn a_fleet_needs_a_name_an_address_and_an_engine() {
    let nats = ("cluster.engine", "nats");
    let (name, address) = (
        ("cluster.name", "a-1"),
        ("cluster.advertise", "a.example:4443"),
    );
    let url = ("cluster.nats.urls", "tls://nats.example:4222");
    assert!(load("", &[], &[nats, name, address, url]).is_ok());
    let refused = |overrides: &[(&str, &str)]| load("", &[], overrides).unwrap_err().to_string();
    let all = refused(&[nats]);
    for key in [
        "`cluster.name`",
        "`cluster.advertise`",
        "`cluster.nats.urls`",
    ] {
        assert!(all.contains(key), "{all}");
    }
    let many = "a.example:4443,".repeat(9);
    for (fault, key) in [
        (("cluster.advertise", many.as_str()), "`cluster.advertise`"),
        (("cluster.nats.user", "media"), "`cluster.nats.user`"),
        (("cluster.nats.key", "key.pem"), "`cluster.nats.cert`"),
        (("cluster.nats.urls", "nats://nats.example"), "needs TLS"),
        (("cluster.name", "a b"), "is no name"),
        (("cluster.zone", ""), "is no name"),
        (("cluster.advertise", "a.example"), "is no address"),
        (("cluster.token_file", "/nowhere"), "`cluster.token_file`"),
    ] {
        let refused = refused(&[nats, name, address, url, fault]);
        assert!(refused.contains(key), "{fault:?}: {refused}");
    }

    let listed = ("cluster.engine", "static");
    let members = (
        "cluster.static.members",
        "https://a.example/list?t=open-sesame",
    );
    let secret = ("cluster.static.secret_file", "/etc/ncserverd/fleet.secret");
    let loaded = load("", &[], &[listed, name, address, members, secret]).unwrap();
    assert!(!loaded.explain().contains("sesame"), "{}", loaded.explain());
    assert!(!loaded.config.to_toml().contains("sesame"));
    let all = refused(&[listed]);
    for key in [
        "`cluster.name`",
        "`cluster.advertise`",
        "`cluster.static.members`",
        "`cluster.static.secret_file`",
    ] {
        assert!(all.contains(key), "{all}");
    }
    for (fault, reason) in [
        (
            ("cluster.static.members", "http://a.example/list"),
            "use https",
        ),
        (
            ("cluster.static.members", "ftp://a.example/list"),
            "expected an http",
        ),
        (
            ("cluster.static.member", "list"),
            "did you mean `cluster.static.members`",
        ),
        (("admission.clients_ca", "/ca.pem"), "`cluster.engine`"),
    ] {
        let refused = refused(&[listed, name, address, members, secret, fault]);
        assert!(refused.contains(reason), "{fault:?}: {refused}");
    }
}

#[test]
fn a_document_comes_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    let own = "[stream.both]\norigin = \"http://own.example/\"\nheaders = { a = \"secret\" }\n\
               [stream.own]\norigin = \"http://own.example/\"\n[admission]\naudience = \"own\"\n";
    std::fs::write(&file, own).unwrap();
    let document = |text: &str| Document::of_revision(7, text.to_owned()).unwrap();
    let shared = "[stream.both]\norigin = \"http://shared.example/\"\nn_max = 64\n\
                  [stream.shared]\norigin = \"http://shared.example/\"\n\
                  [admission]\ngrace = \"3s\"";
    let mut sources = Sources {
        file: Some(file.clone()),
        document: Some(document(shared)),
        environment: pairs(&[("NCSERVERD_STREAM__BOTH__N_MAX", "32")]),
        overrides: Vec::new(),
    };
    let loaded = sources.load().unwrap();
    let streams = &loaded.config.stream;
    assert_eq!(
        streams.keys().collect::<Vec<_>>(),
        ["both", "own", "shared"]
    );
    // A header of the file is not sent to another origin.
    assert!(streams["both"].headers.is_empty());
    assert_eq!(
        streams["both"].origin.as_ref().unwrap().expose(),
        "http://shared.example/"
    );
    assert_eq!(streams["both"].n_max, 64, "it is the document's alone");
    assert_eq!(loaded.places["stream.shared.origin"], Location::Revision(7));
    let admission = &loaded.config.admission;
    assert_eq!(admission.audience.as_deref(), Some("own"));
    assert_eq!(admission.grace, Duration::from_secs(3));

    // Another document is laid over the file as it was.
    std::fs::write(&file, "").unwrap();
    sources.document = Some(document(""));
    let again = sources.load_over(&loaded).unwrap();
    assert_eq!(again.config.stream["both"].headers.len(), 1);
    assert!(again.places.contains_key("stream.both.headers.a"));
    sources.document = Some(document("[stream.both]\nn_maxx = 1"));
    let error = sources.load_over(&loaded).unwrap_err().to_string();
    assert!(
        error.starts_with("revision 7 of the fleet: unknown key"),
        "{error}"
    );
}

/// What variables and flags set of a stream of the document would go to another origin.
#[test]
fn a_stream_of_the_document_is_the_documents_alone() {
    let text = "[stream.live]\norigin = \"http://document.example/\"";
    let pair = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
    let mut sources = Sources {
        environment: [
            (
                "NCSERVERD_STREAM__LIVE__HEADERS__AUTHORIZATION",
                "Bearer hidden",
            ),
            ("NCSERVERD_STREAM__OWN__ORIGIN", "http://own.example/"),
        ]
        .map(pair)
        .to_vec(),
        overrides: [
            ("stream.live.signing_key", "/etc/key.pem"),
            ("stream.live.origin", "http://flag.example/"),
            ("stream.own.n_max", "64"),
            ("stream.later.n_max", "64"),
            ("cluster.config.enabled", "true"),
            ("cluster.engine", "nats"),
            ("cluster.name", "one"),
            ("cluster.advertise", "one.example:4443"),
            ("cluster.nats.urls", "nats://127.0.0.1"),
        ]
        .map(pair)
        .to_vec(),
        document: Some(Document::of_revision(1, text.to_owned()).unwrap()),
        ..Sources::default()
    };
    let loaded = sources.load().unwrap();
    let live = &loaded.config.stream["live"];
    assert_eq!(
        live.origin.as_ref().unwrap().expose(),
        "http://document.example/"
    );
    assert!(live.headers.is_empty() && live.signing_key.is_none());
    assert_eq!(loaded.config.stream["own"].n_max, 64);
    assert_eq!(loaded.config.stream.len(), 2);
    let about = |key: &str| loaded.findings.iter().any(|finding| finding.key == key);
    assert!(about("stream.live.headers.authorization") && about("stream.later.n_max"));
    assert!(!loaded.explain().contains("hidden"));
    // Before the first document, the flags define a stream, and one that is nowhere stops nothing.
    sources.document = None;
    let loaded = sources.load().unwrap();
    let live = &loaded.config.stream["live"];
    assert_eq!(
        live.origin.as_ref().unwrap().expose(),
        "http://flag.example/"
    );
    assert!(!loaded.config.stream.contains_key("later"));
    // Without the fleet's configuration it is a mistake.
    sources
        .overrides
        .retain(|(key, _)| key != "cluster.config.enabled");
    assert!(sources.load().is_err());
}
