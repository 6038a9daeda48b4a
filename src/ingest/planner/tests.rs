use super::*;
use proptest::prelude::*;

fn planner(prefetch: usize) -> Planner {
    Planner::new(
        config(prefetch),
        Some(Url::parse("http://origin.test/base/").unwrap()),
    )
}

impl Planner {
    fn update(&mut self, path: &ObjectPath, text: &[u8], now: Instant) -> Result<Plan, Error> {
        self.update_for(None, path, text, now)
    }

    fn update_for(
        &mut self,
        by: Option<u128>,
        path: &ObjectPath,
        text: &[u8],
        now: Instant,
    ) -> Result<Plan, Error> {
        self.take(&mut self.reader(path, by, now).read(text)?, now)
    }
}

fn config(prefetch: usize) -> Config {
    let (stale_after, interest) = (Duration::from_secs(30), Duration::from_secs(30));
    Config {
        prefetch,
        stale_after,
        interest,
        queries_max: 1,
        parameters: Parameters::All,
        bytes_max: 1 << 20,
    }
}

fn path(text: &str) -> ObjectPath {
    ObjectPath::parse(text).unwrap()
}

fn whole(text: &str) -> Cut {
    Cut {
        path: path(text),
        range: None,
    }
}

fn piece(text: &str, range: Range<u64>) -> Cut {
    Cut {
        path: path(text),
        range: Some(range),
    }
}

fn live(first: u64, count: u64) -> String {
    let mut text = format!(
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:{first}\n"
    );
    for number in first..first + count {
        text += &format!("#EXTINF:4.000,a title, with commas\nseg{number}.ts\n");
    }
    text
}

#[test]
fn the_live_edge_is_fetched_and_what_left_is_named() {
    let (mut planner, now) = (planner(2), Instant::now());
    let list = path("v0/live.m3u8");
    let plan = planner.update(&list, live(10, 5).as_bytes(), now).unwrap();
    assert_eq!(plan.prefetch, [whole("v0/seg13.ts"), whole("v0/seg14.ts")]);
    assert!(plan.left.is_empty());
    assert!(planner.is_edge(&whole("v0/seg14.ts")) && !planner.is_edge(&whole("v0/seg12.ts")));
    assert!(planner.governs("v0") && !planner.governs(""));

    let plan = planner.update(&list, live(12, 5).as_bytes(), now).unwrap();
    assert_eq!(plan.prefetch, [whole("v0/seg15.ts"), whole("v0/seg16.ts")]);
    assert_eq!(plan.left, [whole("v0/seg10.ts"), whole("v0/seg11.ts")]);
    let plan = planner.update(&list, live(12, 5).as_bytes(), now).unwrap();
    assert_eq!(plan, Plan::default());
    assert_eq!(planner.forget(&list, now).plan().left.len(), 5);
}

/// Such as an advertisement: it is fetched once, and stays while one place of it is listed.
#[test]
fn a_segment_that_is_listed_twice_is_one_cut() {
    let list = |first: u64, names: &[&str]| {
        let segments = names
            .iter()
            .map(|name| format!("#EXTINF:4.000,\n{name}.ts\n"))
            .collect::<String>();
        format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:{first}\n{segments}")
    };
    let (mut planner, path, now) = (planner(4), path("live.m3u8"), Instant::now());
    let plan = planner
        .update(&path, list(1, &["ad", "a", "ad", "ad"]).as_bytes(), now)
        .unwrap();
    assert_eq!(
        (plan.prefetch, plan.left),
        (vec![whole("ad.ts"), whole("a.ts")], vec![])
    );
    let plan = planner
        .update(&path, list(2, &["a", "ad", "ad", "b"]).as_bytes(), now)
        .unwrap();
    assert_eq!(
        (plan.step, plan.prefetch, plan.left),
        (Step::Forward, vec![whole("b.ts")], vec![])
    );
    let plan = planner
        .update(&path, list(5, &["b", "c"]).as_bytes(), now)
        .unwrap();
    assert_eq!(
        (plan.prefetch, plan.left),
        (vec![whole("c.ts")], vec![whole("a.ts"), whole("ad.ts")])
    );
}

#[test]
fn what_another_playlist_still_lists_has_not_left() {
    let (mut planner, now) = (planner(2), Instant::now());
    planner
        .update(&path("a.m3u8"), live(0, 3).as_bytes(), now)
        .unwrap();
    planner
        .update(&path("b.m3u8"), live(0, 3).as_bytes(), now)
        .unwrap();
    assert!(
        planner
            .update(&path("a.m3u8"), live(1, 3).as_bytes(), now)
            .unwrap()
            .left
            .is_empty()
    );
    assert_eq!(
        planner
            .update(&path("b.m3u8"), live(1, 3).as_bytes(), now)
            .unwrap()
            .left,
        [whole("seg0.ts")]
    );
}

#[test]
fn a_lagging_replica_does_not_turn_the_clock_back() {
    let (mut planner, now) = (planner(2), Instant::now());
    let list = path("live.m3u8");
    planner.update(&list, live(10, 5).as_bytes(), now).unwrap();
    let plan = planner.update(&list, live(9, 5).as_bytes(), now).unwrap();
    assert_eq!(
        plan,
        Plan {
            step: Step::Lagging,
            ..Plan::default()
        }
    );
    assert!(
        planner
            .update(&list, live(11, 5).as_bytes(), now)
            .unwrap()
            .left
            .contains(&whole("seg10.ts"))
    );
}

#[test]
fn an_encoder_that_starts_over_invalidates_the_old_names() {
    let (mut planner, now) = (planner(2), Instant::now());
    let list = path("live.m3u8");
    planner.update(&list, live(10, 5).as_bytes(), now).unwrap();
    let plan = planner.update(&list, live(0, 2).as_bytes(), now).unwrap();
    assert_eq!(plan.step, Step::Restarted);
    assert_eq!(plan.dropped.len(), 5);
    assert_eq!(plan.prefetch, [whole("seg0.ts"), whole("seg1.ts")]);

    let other = live(0, 2).replace("seg", "new");
    let plan = planner.update(&list, other.as_bytes(), now).unwrap();
    assert_eq!((plan.step, plan.dropped.len()), (Step::Restarted, 2));
}

#[test]
fn initialisation_segments_come_before_what_needs_them() {
    let (mut planner, now) = (planner(2), Instant::now());
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MAP:URI=\"init.mp4\"\n#EXTINF:2,\na.m4s\n\
                #EXTINF:2,\nb.m4s\n#EXT-X-DISCONTINUITY\n\
                #EXT-X-MAP:URI=\"init2.mp4\",BYTERANGE=\"100@20\"\n\
                #EXTINF:2,\nc.m4s";
    let plan = planner
        .update(&path("live.m3u8"), text.as_bytes(), now)
        .unwrap();
    assert_eq!(
        plan.prefetch,
        [
            whole("init.mp4"),
            whole("b.m4s"),
            piece("init2.mp4", 20..120),
            whole("c.m4s")
        ]
    );
}

#[test]
fn byte_ranges_become_cuts() {
    let (mut planner, now) = (planner(3), Instant::now());
    let text = "#EXTM3U\r\n#EXT-X-TARGETDURATION:2.5\r\n#EXT-X-PLAYLIST-TYPE:VOD\r\n\
                #EXT-X-MAP:URI=\"all.mp4\",BYTERANGE=\"700@0\"\r\n\
                #EXTINF:2,\r\n#EXT-X-BYTERANGE:1000@1000\r\nall.mp4\r\n#EXTINF:2,\r\n\
                #EXT-X-BYTERANGE:500\r\nall.mp4\r\n#EXTINF:2,\r\nother.mp4\r\n#EXT-X-ENDLIST\r\n";
    let plan = planner
        .update(&path("vod.m3u8"), text.as_bytes(), now)
        .unwrap();
    assert_eq!(
        plan,
        Plan::default(),
        "nothing of a finished recording is fetched ahead"
    );
    let part = |offset, max| planner.part(&path("all.mp4"), offset, max);
    assert_eq!(
        part(0, 1 << 20),
        ReadRange {
            range: 0..700,
            listed: true
        }
    );
    assert_eq!(
        part(699, 1 << 20),
        ReadRange {
            range: 0..700,
            listed: true
        }
    );
    assert_eq!(
        part(700, 1 << 20),
        ReadRange {
            range: 700..1000,
            listed: false
        }
    );
    assert_eq!(
        part(1000, 1 << 20),
        ReadRange {
            range: 1000..2000,
            listed: true
        }
    );
    assert_eq!(
        part(2400, 1 << 20),
        ReadRange {
            range: 2000..2500,
            listed: true
        }
    );
    assert_eq!(
        part(1999, 300),
        ReadRange {
            range: 1900..2000,
            listed: true
        },
        "long ranges are cut further"
    );
    assert_eq!(part(2600, 1 << 20).range.start, 2500);
    assert_eq!(
        planner.part(&path("other.mp4"), 1030, 500),
        ReadRange {
            range: 1000..1500,
            listed: false
        }
    );
}

#[test]
fn ranges_without_an_offset_follow_each_other_through_a_sliding_window() {
    let (mut planner, now) = (planner(1), Instant::now());
    let list = path("live.m3u8");
    let window = |first: u64| {
        format!(
            "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:{first}\n#EXTINF:2,\n\
             #EXT-X-BYTERANGE:100@{}\nx.ts\n#EXTINF:2,\n#EXT-X-BYTERANGE:100\nx.ts\n",
            first * 100
        )
    };
    assert_eq!(
        planner
            .update(&list, window(0).as_bytes(), now)
            .unwrap()
            .prefetch,
        [piece("x.ts", 100..200)]
    );
    let plan = planner.update(&list, window(1).as_bytes(), now).unwrap();
    assert_eq!(
        (plan.step, plan.prefetch, plan.left),
        (
            Step::Forward,
            vec![piece("x.ts", 200..300)],
            vec![piece("x.ts", 0..100)]
        )
    );
}

#[test]
fn uris_lead_into_the_stream_or_nowhere() {
    let planner = planner(1);
    let list = path("v0/live.m3u8");
    for (uri, object) in [
        ("seg.ts", Some("v0/seg.ts")),
        ("seg.ts?a=1&b=%2F", Some("v0/seg.ts?a=1&b=%2F")),
        ("../v1/seg.ts", Some("v1/seg.ts")),
        ("/base/v0/seg.ts", Some("v0/seg.ts")),
        ("http://origin.test/base/x/seg.ts?q", Some("x/seg.ts?q")),
        ("http://origin.test:80/base/seg.ts", Some("seg.ts")),
        ("../../seg.ts", None),
        ("/seg.ts", None),
        ("/baseball/seg.ts", None),
        ("https://origin.test/base/seg.ts", None),
        ("http://elsewhere.test/base/seg.ts", None),
        ("//elsewhere.test/base/seg.ts", None),
        ("a//b.ts", None),
        ("%2e%2e/%2e%2e/etc/passwd", None),
        ("data:video/mp2t,abc", None),
    ] {
        assert_eq!(
            planner.reader(&list, None, Instant::now()).locate(uri),
            object.map(path),
            "{uri}"
        );
    }
    let folder = Planner::new(planner.config.clone(), None);
    assert_eq!(
        folder.reader(&list, None, Instant::now()).locate("seg.ts"),
        Some(path("v0/seg.ts"))
    );
    assert_eq!(
        folder.reader(&list, None, Instant::now()).locate("/seg.ts"),
        None
    );
    assert_eq!(
        folder
            .reader(&list, None, Instant::now())
            .locate("../../../seg.ts"),
        Some(path("seg.ts")),
        "as RFC 3986 and every player resolve it"
    );
}

#[test]
fn absolute_uris_are_made_local() {
    let base = Url::parse("http://origin.test/base/").unwrap();
    let text = "#EXTM3U\r\n\
                #EXT-X-MAP:URI=\"http://origin.test/base/v0/init.mp4\",BYTERANGE=\"1@0\"\r\n\
                #EXTINF:2,\r\n/base/v0/a.m4s?x=1\r\n#EXTINF:2,\r\nb.m4s\r\n#EXTINF:2,\r\n\
                http://elsewhere.test/c.m4s";
    let expected = "#EXTM3U\r\n#EXT-X-MAP:URI=\"/live/v0/init.mp4\",BYTERANGE=\"1@0\"\r\n\
                    #EXTINF:2,\r\n/live/v0/a.m4s?x=1\r\n#EXTINF:2,\r\nb.m4s\r\n#EXTINF:2,\r\n\
                    http://elsewhere.test/c.m4s";
    assert_eq!(
        localise(text.as_bytes(), &path("v0/x.m3u8"), &base, "live").as_deref(),
        Some(expected)
    );
    assert_eq!(
        localise(live(0, 2).as_bytes(), &path("x.m3u8"), &base, "live"),
        None
    );
}

#[test]
fn a_pinned_master_brings_its_variants() {
    let (mut planner, now) = (planner(1), Instant::now());
    planner.pin([path("master.m3u8")], now);
    assert_eq!(planner.due(now), [path("master.m3u8")]);
    let text = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"en\",URI=\"audio/en.m3u8\"\n\
                #EXT-X-STREAM-INF:BANDWIDTH=1000,AUDIO=\"a\"\nv0/x.m3u8\n\
                #EXT-X-STREAM-INF:BANDWIDTH=2000\nhttp://cdn.test/v1.m3u8\n";
    planner
        .update(&path("master.m3u8"), text.as_bytes(), now)
        .unwrap();
    assert_eq!(planner.due(now), [path("audio/en.m3u8"), path("v0/x.m3u8")]);
    assert!(planner.next_look().unwrap() > now);

    planner
        .update(&path("v0/x.m3u8"), live(0, 3).as_bytes(), now)
        .unwrap();
    assert_eq!(
        planner.due(now + Duration::from_secs(2)),
        [path("audio/en.m3u8"), path("v0/x.m3u8")]
    );
}

#[test]
fn nobody_asking_ends_the_looking() {
    let (mut planner, now) = (planner(1), Instant::now());
    let list = path("live.m3u8");
    planner.update(&list, live(0, 3).as_bytes(), now).unwrap();
    let later = now + Duration::from_secs(2);
    assert_eq!(planner.due(later), std::slice::from_ref(&list));
    planner.asked(&list, later);
    let much_later = later + Duration::from_secs(31);
    assert!(planner.due(much_later).is_empty());
    assert_eq!(planner.next_look(), None);
    planner.asked(&list, much_later);
    assert!(planner.next_look().is_some());
}

#[test]
fn a_live_playlist_that_stands_still_is_stale() {
    let (mut planner, now) = (planner(1), Instant::now());
    let list = path("live.m3u8");
    planner.update(&list, live(0, 3).as_bytes(), now).unwrap();
    let later = now + Duration::from_secs(31);
    planner.unchanged(&list, later);
    assert_eq!(planner.stale(&list, later), Some(Duration::from_secs(31)));
    planner.update(&list, live(1, 3).as_bytes(), later).unwrap();
    assert_eq!(planner.stale(&list, later), None);
    planner
        .update(&list, (live(1, 3) + "#EXT-X-ENDLIST\n").as_bytes(), later)
        .unwrap();
    assert_eq!(planner.stale(&list, later + Duration::from_secs(300)), None);
}

#[test]
fn what_cannot_be_read_to_its_end_changes_nothing() {
    let (mut planner, now) = (planner(1), Instant::now());
    let list = path("live.m3u8");
    planner.update(&list, live(0, 3).as_bytes(), now).unwrap();
    for (text, error) in [
        ("", Error::NoPlaylist),
        ("<html>", Error::NoPlaylist),
        ("#EXTM3U8\nx.ts", Error::NoPlaylist),
        (
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1,BAD\na.m3u8?x=1\n",
            Error::Unreadable,
        ),
        (
            "#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:7x\n#EXTINF:2,\na.ts",
            Error::Unreadable,
        ),
        (
            "#EXTM3U\n#EXTINF:2,\n#EXT-X-BYTERANGE:18446744073709551615@1\na.ts",
            Error::Unreadable,
        ),
        (
            "#EXTM3U\n#EXTINF:2,\n#EXT-X-BYTERANGE:0@1\na.ts",
            Error::Unreadable,
        ),
    ] {
        assert_eq!(
            planner.update(&list, text.as_bytes(), now),
            Err(error),
            "{text}"
        );
    }
    assert_eq!(
        planner.update(&list, b"#EXTM3U\n\xff", now),
        Err(Error::NoPlaylist)
    );
    assert_eq!(
        planner.update(&list, live(0, 3).as_bytes(), now),
        Ok(Plan::default())
    );
    let delta = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:0\n\
                 #EXT-X-SKIP:SKIPPED-SEGMENTS=2\n#EXTINF:4,\nseg3.ts\n";
    assert_eq!(
        planner.update(&list, delta.as_bytes(), now),
        Ok(Plan::default())
    );
}

#[test]
fn one_playlist_of_a_path_is_followed_whatever_the_queries() {
    let (mut planner, now) = (planner(2), Instant::now());
    let (plain, odd) = (path("live.m3u8"), |number: u64| {
        path(&format!("live.m3u8?{number}"))
    });
    assert_eq!(
        planner
            .update(&odd(0), live(10, 5).as_bytes(), now)
            .unwrap()
            .prefetch
            .len(),
        2
    );
    for number in 1..180 {
        // Even other texts, which would look like a restarted encoder.
        let plan = planner
            .update(&odd(number), live(number, 3).as_bytes(), now)
            .unwrap();
        assert_eq!((plan, planner.playlists.len()), (Plan::default(), 1));
    }
    let plan = planner.update(&plain, live(10, 5).as_bytes(), now).unwrap();
    assert_eq!(
        (plan.step, planner.playlists.len()),
        (Step::Forward, 1),
        "what everybody asks for goes before"
    );
    assert_eq!(
        planner.update(&odd(1), live(0, 5).as_bytes(), now),
        Ok(Plan::default())
    );
    assert_eq!(
        planner.due(now + Duration::from_secs(2)),
        std::slice::from_ref(&plain)
    );

    // Requests with other queries keep it followed; without requests, another may take its place.
    let later = now + Duration::from_secs(25);
    planner.asked(&odd(7), later);
    assert_eq!(
        planner.due(later + Duration::from_secs(25)),
        std::slice::from_ref(&plain)
    );
    let idle = later + Duration::from_secs(31);
    planner
        .update(&odd(3), live(20, 5).as_bytes(), idle)
        .unwrap();
    assert_eq!(planner.playlists.keys().collect::<Vec<_>>(), [&odd(3)]);
}

#[test]
fn a_configured_playlist_is_followed_beside_others_of_its_path() {
    let (mut planner, now) = (planner(2), Instant::now());
    planner
        .update(&path("live.m3u8?x"), live(10, 5).as_bytes(), now)
        .unwrap();
    planner.pin([path("live.m3u8?a=1"), path("live.m3u8?a=2")], now);
    for query in ["a=1", "a=2"] {
        let plan = planner
            .update(
                &path(&format!("live.m3u8?{query}")),
                live(3, 5).as_bytes(),
                now,
            )
            .unwrap();
        assert_eq!(plan.prefetch.len(), 2, "{query}");
    }
    assert_eq!(
        planner
            .update(&path("live.m3u8"), live(3, 5).as_bytes(), now)
            .unwrap()
            .prefetch
            .len(),
        2
    );
    assert_eq!(
        planner.playlists.len(),
        3,
        "the one that nobody has configured has made room"
    );
}

#[test]
fn as_many_queries_of_a_path_are_followed_as_may_be() {
    let base = Some(Url::parse("http://origin.test/base/").unwrap());
    let parameters = Parameters::new(&["v".to_owned()]);
    let (mut planner, now) = (
        Planner::new(
            Config {
                queries_max: 3,
                parameters,
                ..config(1)
            },
            base,
        ),
        Instant::now(),
    );
    for number in 0..10 {
        planner
            .update(
                &path(&format!("live.m3u8?v={number}")),
                live(0, 3).as_bytes(),
                now,
            )
            .unwrap();
    }
    assert_eq!(planner.playlists.len(), 3);
    assert_eq!(
        planner
            .reader(&path("live.m3u8?v=1"), None, now)
            .locate("seg.ts?x=1&v=2"),
        Some(path("seg.ts?v=2"))
    );
}

#[test]
fn what_playlists_list_is_bounded_by_bytes_and_the_large_ones_go_first() {
    let (mut planner, now) = (planner(2), Instant::now());
    let (edge, archive) = (path("live.m3u8"), |number: u64| {
        path(&format!("archive{number}.m3u8"))
    });
    planner.update(&edge, live(10, 5).as_bytes(), now).unwrap();
    for number in 0..20 {
        let text = live(0, 900).replace("seg", &format!("archive{number}/seg"));
        let _ = planner.update(&archive(number), text.as_bytes(), now);
        let sum: u64 = planner.listings().map(|listing| listing.bytes).sum();
        assert!(
            planner.bytes == sum && sum <= planner.config.bytes_max,
            "{sum}"
        );
    }
    assert!(planner.playlists.contains_key(&edge));
    let followed = planner.playlists.len();
    assert!((3..12).contains(&followed), "{followed}");
    assert_eq!(
        planner.update(&path("all.m3u8"), live(0, 100_000).as_bytes(), now),
        Err(Error::TooLong)
    );
    assert_eq!(
        planner.playlists.len(),
        followed,
        "what fits nowhere makes nobody go"
    );

    // A new small one replaces a large one; those without requests make room for everything.
    let text = live(0, 500).replace("seg", "other/seg");
    planner
        .update(&path("small.m3u8"), text.as_bytes(), now)
        .unwrap();
    assert!(planner.playlists.contains_key(&path("small.m3u8")));
    let later = now + Duration::from_secs(60);
    planner.asked(&edge, later);
    planner
        .update(
            &archive(99),
            live(0, 2500).replace("seg", "99/seg").as_bytes(),
            later,
        )
        .unwrap();
    assert!(planner.playlists.contains_key(&edge) && planner.playlists.contains_key(&archive(99)));
}

/// Spellings of one playlist, at an origin that ignores the differences.
#[test]
fn playlists_that_one_account_has_made_up_push_out_none_of_others() {
    let (mut planner, now) = (planner(2), Instant::now());
    let honest: Vec<ObjectPath> = (0..10)
        .map(|number| path(&format!("channel{number}.m3u8")))
        .collect();
    for (number, list) in honest.iter().enumerate() {
        planner
            .update_for(Some(number as u128), list, live(10, 5).as_bytes(), now)
            .unwrap();
    }
    // It requests faster than all others.
    let mut now = now;
    for number in 0..1000 {
        now += Duration::from_millis(20);
        planner
            .update_for(
                Some(100),
                &path(&format!("live.m3u8;{number}")),
                live(10, 5).as_bytes(),
                now,
            )
            .unwrap();
    }
    assert!(honest.iter().all(|list| planner.followed(list).is_some()));
    assert_eq!(planner.playlists.len(), honest.len() + PLAYLISTS_OF_ONE_MAX);
    assert_eq!(
        planner.followed(&path("live.m3u8;999")),
        Some(Followed {
            is_pinned: false,
            by: Some(100)
        })
    );
    assert!(
        planner
            .edge(&whole("seg14.ts"))
            .is_some_and(|edge| !edge.is_pinned)
    );
    planner.pin([honest[0].clone()], now);
    assert!(
        planner
            .edge(&whole("seg14.ts"))
            .is_some_and(|edge| edge.is_pinned)
    );
    // Several accounts fill all places: the one with the most makes room.
    for account in 101..105 {
        for number in 0..PLAYLISTS_OF_ONE_MAX {
            let list = path(&format!("{account}/live{number}.m3u8"));
            planner
                .update_for(Some(account), &list, live(10, 5).as_bytes(), now)
                .unwrap();
        }
    }
    assert_eq!(planner.playlists.len(), PLAYLISTS_MAX);
    let is_fresh = |list: &&ObjectPath| planner.followed(list).is_some();
    assert_eq!(honest.iter().filter(is_fresh).count(), honest.len());
}

#[test]
fn a_playlist_grows_beyond_those_that_somebody_has_made_up() {
    let (mut planner, now) = (planner(2), Instant::now());
    let list = path("live.m3u8");
    planner
        .update_for(Some(1), &list, live(10, 900).as_bytes(), now)
        .unwrap();
    planner.config.bytes_max = 3 * planner.bytes();
    for number in 0..20 {
        let _ = planner.update_for(
            Some(2),
            &path(&format!("live.m3u8;{number}")),
            live(10, 900).as_bytes(),
            now,
        );
    }
    for longer in [901, 950, 1100] {
        planner
            .update_for(Some(1), &list, live(10, longer).as_bytes(), now)
            .unwrap();
    }
    assert!(planner.followed(&list).is_some() && planner.bytes() <= planner.config.bytes_max);
    // Configured playlists have room before all others.
    planner.pin([path("all.m3u8")], now);
    planner
        .update(&path("all.m3u8"), live(0, 1500).as_bytes(), now)
        .unwrap();
}

#[test]
fn a_reading_of_something_else_than_what_is_there_changes_nothing() {
    let (mut planner, now) = (planner(2), Instant::now());
    let list = path("live.m3u8");
    planner.update(&list, live(10, 5).as_bytes(), now).unwrap();
    let mut slow = planner
        .reader(&list, None, now)
        .read(live(11, 5).as_bytes())
        .unwrap();
    assert_eq!(
        planner
            .update(&list, live(12, 5).as_bytes(), now)
            .unwrap()
            .left
            .len(),
        2
    );
    assert_eq!(planner.take(&mut slow, now), Ok(Plan::default()));
    assert_eq!(
        planner
            .update(&list, live(13, 5).as_bytes(), now)
            .unwrap()
            .left,
        [whole("seg12.ts")]
    );
}

#[test]
fn of_two_ranges_from_one_offset_on_the_newer_counts() {
    let (mut planner, now) = (planner(0), Instant::now());
    let text = |length| {
        format!(
            "#EXTM3U\n#EXTINF:2,\n#EXT-X-BYTERANGE:{length}@0\nx.ts\n#EXTINF:2,\n\
             #EXT-X-BYTERANGE:5@900\nx.ts\n"
        )
    };
    planner
        .update(&path("a.m3u8"), text(100).as_bytes(), now)
        .unwrap();
    planner
        .update(
            &path("b.m3u8"),
            text(70).as_bytes(),
            now + Duration::from_secs(1),
        )
        .unwrap();
    assert_eq!(
        planner.part(&path("x.ts"), 10, 1 << 20),
        ReadRange {
            range: 0..70,
            listed: true
        }
    );
    assert_eq!(
        planner.part(&path("x.ts"), 80, 1 << 20),
        ReadRange {
            range: 70..900,
            listed: false
        }
    );
    planner.forget(&path("b.m3u8"), now);
    assert_eq!(
        planner.part(&path("x.ts"), 80, 1 << 20),
        ReadRange {
            range: 0..100,
            listed: true
        }
    );
}

#[test]
fn the_number_of_playlists_is_bounded() {
    let (mut planner, now) = (planner(1), Instant::now());
    for number in 0..1000 {
        planner
            .update(
                &path(&format!("{number}.m3u8")),
                live(number, 3).as_bytes(),
                now,
            )
            .unwrap();
    }
    assert_eq!(planner.playlists.len(), PLAYLISTS_MAX);
}

proptest! {
    #[test]
    fn no_text_upsets_it(
        lines in proptest::collection::vec(
            "(#EXTINF:[0-9.]{0,3},?|#EXT-X-(MAP|STREAM-INF|MEDIA|BYTERANGE|MEDIA-SEQUENCE|\
             TARGETDURATION|GAP|ENDLIST):?[A-Z0-9=\",@/.]{0,12}|[a-z0-9./?=]{0,12}|\\PC{0,8})",
            0..24,
        ),
    ) {
        let text = format!("#EXTM3U\n{}", lines.join("\n"));
        let mut planner = planner(3);
        let now = Instant::now();
        let _ = planner.update(&path("a.m3u8"), text.as_bytes(), now);
        let _ = planner.update(&path("a.m3u8"), live(0, 3).as_bytes(), now);
        let _ = localise(text.as_bytes(), &path("a.m3u8"), planner.base.as_ref().unwrap(), "s");
        planner.forget(&path("a.m3u8"), now);
        prop_assert!(planner.playlists.is_empty() && planner.bytes == 0);
    }

    #[test]
    fn parts_tile_the_object(
        ranges in proptest::collection::vec((0_u64..2000, 1_u64..300), 0..8),
        max in 50_u64..1000,
    ) {
        let mut text = String::from("#EXTM3U\n#EXT-X-TARGETDURATION:2\n");
        for (start, length) in ranges {
            text += &format!("#EXTINF:2,\n#EXT-X-BYTERANGE:{length}@{start}\nx.ts\n");
        }
        let mut planner = planner(1);
        planner.update(&path("a.m3u8"), text.as_bytes(), Instant::now()).unwrap();
        let mut offset = 0;
        while offset < 3000 {
            let part = planner.part(&path("x.ts"), offset, max);
            prop_assert!(part.range.contains(&offset));
            prop_assert!(part.range.end - part.range.start <= max);
            offset = part.range.end;
        }
    }
}
