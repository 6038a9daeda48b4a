//! Reads DASH manifests (ISO/IEC 23009-1) for the gateway: whether they are live, and what a player
//! requests first.

use std::collections::HashMap;
use std::fmt::Write as _;

use ncs_proto::wire::message::stream_of;
use roxmltree::{Document, Node, ParsingOptions};

use super::playlist::resolve;

/// The parts of a manifest needed for prefetching.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Manifest {
    /// Whether segments are added to it.
    pub(super) is_live: bool,
    /// The beginnings of its representations in order, at most [`REPRESENTATIONS_MAX`], without
    /// those outside its stream.
    pub(super) beginnings: Vec<Beginning>,
}

/// The first files of a representation, by their paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Beginning {
    /// Its initialization segment, if it has one.
    pub(super) initialization: Option<String>,
    /// The first media segment.
    pub(super) media: String,
    /// Whether it is the only audio or video representation, so that a player has no choice.
    pub(super) is_only: bool,
}

impl Manifest {
    /// Whether an object with this beginning is a DASH manifest, and if so, a live one (section
    /// 5.3.1.2).
    pub(super) fn sniff(beginning: &[u8]) -> Option<bool> {
        let text = String::from_utf8_lossy(beginning);
        let element = text.split_once("<MPD")?.1;
        let attributes = element
            .split_once('>')
            .map_or(element, |(attributes, _)| attributes);
        Some(attributes.contains("\"dynamic\"") || attributes.contains("'dynamic'"))
    }

    /// Parses the manifest at `path`; `None` for anything else, and for one that would cost too
    /// much. Only the first period is read.
    pub(super) fn parse(path: &str, bytes: &[u8]) -> Option<Self> {
        if !is_cheap(bytes) {
            return None;
        }
        let options = ParsingOptions {
            nodes_limit: NODES_MAX,
            ..ParsingOptions::default()
        };
        let document =
            Document::parse_with_options(std::str::from_utf8(bytes).ok()?, options).ok()?;
        let mpd = Some(document.root_element()).filter(|root| root.tag_name().name() == "MPD")?;
        let is_live = mpd.attribute("type") == Some("dynamic");
        let Some(period) = children(mpd, "Period").next() else {
            return Some(Self {
                is_live,
                ..Self::default()
            });
        };
        let representations = children(period, "AdaptationSet").flat_map(|set| {
            let levels = move |representation| [representation, set, period, mpd];
            children(set, "Representation").map(levels)
        });
        let representations: Vec<_> = representations.collect();
        let mut of_kind: HashMap<_, usize> = HashMap::new();
        for levels in &representations {
            *of_kind.entry(kind(levels)).or_default() += 1;
        }
        let beginnings = representations
            .iter()
            .take(REPRESENTATIONS_MAX)
            .filter_map(|levels| {
                let kind = kind(levels);
                let is_only =
                    matches!(kind, Some("audio" | "video")) && of_kind.get(&kind) == Some(&1);
                beginning(path, levels, is_only)
            });
        let beginnings = beginnings.collect();
        Some(Self {
            is_live,
            beginnings,
        })
    }
}

/// The beginning of a representation; `levels` are the elements that apply to it, the nearest first
/// (section 5.3.9.1).
fn beginning(path: &str, levels: &[Node<'_, '_>; 4], is_only: bool) -> Option<Beginning> {
    let mut base = path.to_owned();
    for level in levels.iter().rev() {
        if let Some(url) = children(*level, "BaseURL")
            .next()
            .and_then(|url| url.text())
        {
            base = at(&base, url.trim())?;
        }
    }
    let all = |name| levels.iter().flat_map(move |level| children(*level, name));
    let attribute =
        |name: &str| all("SegmentTemplate").find_map(|template| template.attribute(name));
    if let Some(media) = attribute("media") {
        let timeline = all("SegmentTemplate")
            .find_map(|template| children(template, "SegmentTimeline").next());
        let start = timeline.and_then(|timeline| children(timeline, "S").next()?.attribute("t"));
        let values = Values {
            id: levels[0].attribute("id").unwrap_or_default(),
            bandwidth: number(levels[0].attribute("bandwidth"))?.unwrap_or_default(),
            number: number(attribute("startNumber"))?.unwrap_or(1),
            time: number(start)?.unwrap_or_default(),
        };
        let initialization =
            attribute("initialization").and_then(|template| at(&base, &values.fill(template)?));
        return Some(Beginning {
            initialization,
            media: at(&base, &values.fill(media)?)?,
            is_only,
        });
    }
    let media = all("SegmentList")
        .flat_map(|list| children(list, "SegmentURL"))
        .find_map(|url| {
            let is_whole = url.attribute("mediaRange").is_none();
            url.attribute("media").filter(|_| is_whole)
        });
    let initialization = all("SegmentList")
        .flat_map(|list| children(list, "Initialization"))
        .find_map(|url| {
            let is_whole = url.attribute("range").is_none();
            url.attribute("sourceURL").filter(|_| is_whole)
        });
    Some(Beginning {
        initialization: initialization.and_then(|url| at(&base, url)),
        media: at(&base, media?)?,
        is_only,
    })
}

/// Audio, video or text, if a level says so.
fn kind<'a>(levels: &[Node<'a, '_>; 4]) -> Option<&'a str> {
    let attribute = |name| levels.iter().find_map(|level| level.attribute(name));
    attribute("contentType").or_else(|| attribute("mimeType")?.split('/').next())
}

/// Values of the identifiers in a template (section 5.3.9.4.4).
struct Values<'a> {
    id: &'a str,
    bandwidth: u64,
    number: u64,
    time: u64,
}

impl Values<'_> {
    /// The template with its identifiers replaced; `None` for an unknown or unclosed one, or if the
    /// result is too long.
    fn fill(&self, template: &str) -> Option<String> {
        if template.len().max(self.id.len()) > URL_MAX {
            return None;
        }
        let mut filled = String::new();
        // Literals and identifiers alternate; after the last `$` follows a literal.
        let mut parts = template.split('$');
        filled.push_str(parts.next()?);
        while let Some(identifier) = parts.next() {
            let (name, width) = match identifier.split_once("%0") {
                Some((name, format)) => (
                    name,
                    format
                        .strip_suffix('d')?
                        .parse()
                        .ok()
                        .filter(|width| *width <= WIDTH_MAX)?,
                ),
                None => (identifier, 0),
            };
            let value = match name {
                "" => {
                    filled.push('$');
                    None
                }
                "RepresentationID" => {
                    filled.push_str(self.id);
                    None
                }
                "Bandwidth" => Some(self.bandwidth),
                "Number" => Some(self.number),
                "Time" => Some(self.time),
                _ => return None,
            };
            if let Some(value) = value {
                write!(filled, "{value:0width$}").ok()?;
            }
            filled.push_str(parts.next()?);
            if filled.len() > URL_MAX {
                return None;
            }
        }
        Some(filled)
    }
}

fn children<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children()
        .filter(move |child| child.is_element() && child.tag_name().name() == name)
}

/// The number in an attribute, if present; `None` if it is not a number.
fn number(attribute: Option<&str>) -> Option<Option<u64>> {
    attribute.map(|text| text.trim().parse()).transpose().ok()
}

/// The path of a URL in a manifest; `None` if it is outside the stream, or too long.
fn at(base: &str, url: &str) -> Option<String> {
    let path = if url.len() > URL_MAX {
        None
    } else {
        resolve(base, url)
    };
    path.filter(|path| stream_of(path) == stream_of(base))
}

/// Whether the parser's time is proportional to the length: it compares each attribute of an
/// element with the earlier ones, and each namespace with all known ones.
fn is_cheap(bytes: &[u8]) -> bool {
    // In XML `<` only begins a tag.
    let mut tags = bytes.split(|byte| *byte == b'<');
    let attributes = |tag: &[u8]| tag.iter().filter(|byte| **byte == b'=').count();
    let namespaces = bytes
        .windows(5)
        .filter(|window| window == b"xmlns")
        .take(NAMESPACES_MAX + 1)
        .count();
    bytes.len() <= BYTES_MAX
        && namespaces <= NAMESPACES_MAX
        && tags.all(|tag| attributes(tag) <= ATTRIBUTES_MAX)
}

/// Representations to read: films have some ten, and each costs a request.
const REPRESENTATIONS_MAX: usize = 16;
/// Limits of manifests: bytes, nodes, attributes per element, namespaces.
const BYTES_MAX: usize = 1 << 20;
const NODES_MAX: u32 = 100_000;
const ATTRIBUTES_MAX: usize = 64;
const NAMESPACES_MAX: usize = 32;
const URL_MAX: usize = 2048;
/// The maximum width of a number: that of the largest.
const WIDTH_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<(Option<String>, String)> {
        let manifest =
            Manifest::parse("/film/a/manifest.mpd?t=1", text.as_bytes()).expect("a manifest");
        manifest
            .beginnings
            .into_iter()
            .map(|beginning| (beginning.initialization, beginning.media))
            .collect()
    }

    fn pair(initialization: &str, media: &str) -> (Option<String>, String) {
        (Some(initialization.to_owned()), media.to_owned())
    }

    #[test]
    fn manifests_are_known_by_their_beginning() {
        assert_eq!(
            Manifest::sniff(b"<?xml version=\"1.0\"?>\n<MPD xmlns=\"x\" type=\"static\">"),
            Some(false)
        );
        assert_eq!(Manifest::sniff(b"<MPD type='dynamic'><Period>"), Some(true));
        assert_eq!(
            Manifest::sniff(b"<MPD><Period a=\"dynamic\">"),
            Some(false),
            "static is the default"
        );
        assert_eq!(
            Manifest::sniff(b"<SmoothStreamingMedia type=\"dynamic\">"),
            None
        );
    }

    #[test]
    fn templates_name_what_representations_begin_with() {
        let own = "<SegmentTemplate timescale='12800' initialization='init-$RepresentationID$.m4s' \
                   media='v$RepresentationID$-$Number%05d$.m4s' startNumber='7'><SegmentTimeline>\
                   <S t='0' d='51200' r='44'/></SegmentTimeline></SegmentTemplate>";
        let text = format!(
            "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011' type='static'><Period>\
             <AdaptationSet><Representation id='0' bandwidth='200000'>{own}</Representation>\
             <Representation id='hi'>{own}</Representation></AdaptationSet></Period>\
             <Period><AdaptationSet><Representation id='later'>{own}</Representation>\
             </AdaptationSet></Period></MPD>"
        );
        assert_eq!(
            parse(&text),
            [
                pair("/film/a/init-0.m4s", "/film/a/v0-00007.m4s"),
                pair("/film/a/init-hi.m4s", "/film/a/vhi-00007.m4s")
            ]
        );
    }

    #[test]
    fn templates_are_inherited_and_base_urls_add_up() {
        let text = "<MPD><BaseURL>../b/</BaseURL><Period><SegmentTemplate startNumber='0'/>\
                    <AdaptationSet><BaseURL>v/</BaseURL>\
                    <SegmentTemplate media='$Bandwidth$/$Time$_$Number$$$x.m4s'><SegmentTimeline>\
                    <S t='90' d='5'/></SegmentTimeline></SegmentTemplate>\
                    <Representation id='1' bandwidth='500'><BaseURL> q/ </BaseURL></Representation>\
                    <Representation id='2' bandwidth='900'><SegmentTemplate media='own.m4s'/>\
                    </Representation></AdaptationSet></Period></MPD>";
        assert_eq!(
            parse(text),
            [
                (None, "/film/b/v/q/500/90_0$x.m4s".into()),
                (None, "/film/b/v/own.m4s".into())
            ]
        );
    }

    #[test]
    fn lists_name_it_too() {
        let text = "<MPD><Period><AdaptationSet><Representation><SegmentList>\
                    <Initialization sourceURL='i.mp4'/><SegmentURL media='1.m4s'/>\
                    <SegmentURL media='2.m4s'/></SegmentList></Representation><Representation>\
                    <SegmentList><SegmentURL mediaRange='0-9'/></SegmentList></Representation>\
                    </AdaptationSet></Period></MPD>";
        assert_eq!(parse(text), [pair("/film/a/i.mp4", "/film/a/1.m4s")]);
    }

    #[test]
    fn what_there_is_one_of_is_known() {
        let set = |attributes: &str, representations: usize| {
            let one = "<Representation id='1' mimeType='video/mp4'>\
                       <SegmentTemplate media='$Number$.m4s'/></Representation>";
            format!(
                "<AdaptationSet {attributes}>{}</AdaptationSet>",
                one.repeat(representations)
            )
        };
        let only = |sets: &[String]| {
            let text = format!("<MPD><Period>{}</Period></MPD>", sets.concat());
            let manifest =
                Manifest::parse("/film/manifest.mpd", text.as_bytes()).expect("a manifest");
            manifest
                .beginnings
                .iter()
                .map(|beginning| beginning.is_only)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            only(&[set("", 2), set("contentType='audio'", 1)]),
            [false, false, true]
        );
        assert_eq!(
            only(&[
                set("", 1),
                set("contentType='audio' lang='de'", 1),
                set("contentType='audio' lang='en'", 1)
            ]),
            [true, false, false]
        );
        assert_eq!(only(&[set("contentType='text'", 1)]), [false]);
        let many = only(&[
            set("", REPRESENTATIONS_MAX - 1),
            set("contentType='audio'", 2),
        ]);
        assert!(
            many.len() == REPRESENTATIONS_MAX && !many.contains(&true),
            "one that is not looked at counts"
        );
    }

    #[test]
    fn what_cannot_be_read_names_nothing() {
        let within = |representation: &str| {
            format!("<MPD><Period><AdaptationSet>{representation}</AdaptationSet></Period></MPD>")
        };
        let template = |attributes: &str| {
            within(&format!(
                "<Representation id='1'><SegmentTemplate {attributes}/></Representation>"
            ))
        };
        for text in [
            template("media='$Number%05x$.m4s'"),
            template("media='$Number%099d$.m4s'"),
            template("media='$Number%0-1d$.m4s'"),
            template("media='$SubNumber$.m4s'"),
            template("media='a$Number.m4s'"),
            template("media='https://cdn.invalid/1.m4s'"),
            template("media='/other/1.m4s'"),
            template("media='../../other/1.m4s'"),
            template("media='1.m4s' startNumber='-1'"),
            template(&format!("media='{}.m4s'", "x".repeat(URL_MAX))),
            within(
                "<Representation><BaseURL>film.mp4</BaseURL>\
                 <SegmentBase indexRange='0-9'/></Representation>",
            ),
            "<MPD/>".into(),
        ] {
            assert_eq!(parse(&text), [], "{text}");
        }
        for text in [
            "",
            "<MPD>",
            "<SmoothStreamingMedia/>",
            "<!DOCTYPE MPD [<!ENTITY a 'b'>]><MPD>&a;</MPD>",
        ] {
            assert_eq!(
                Manifest::parse("/film/manifest.mpd", text.as_bytes()),
                None,
                "{text}"
            );
        }
        assert_eq!(
            Manifest::parse("/film/manifest.mpd", b"<MPD>\xff</MPD>"),
            None
        );
    }

    #[test]
    fn what_would_cost_too_much_is_not_read() {
        let parse = |text: &str| Manifest::parse("/film/manifest.mpd", text.as_bytes());
        let attributes = |count: usize| {
            format!(
                "<MPD {}/>",
                (0..count)
                    .map(|number| format!("a{number}='>' "))
                    .collect::<String>()
            )
        };
        assert!(
            parse(&attributes(ATTRIBUTES_MAX)).is_some()
                && parse(&attributes(ATTRIBUTES_MAX + 1)).is_none()
        );
        let namespaces = |count: usize| {
            let one = |number| format!("<a xmlns='{number}'>");
            format!(
                "<MPD>{}{}</MPD>",
                (0..count).map(one).collect::<String>(),
                "</a>".repeat(count)
            )
        };
        assert!(
            parse(&namespaces(NAMESPACES_MAX)).is_some()
                && parse(&namespaces(NAMESPACES_MAX + 1)).is_none()
        );
        assert!(parse(&format!("<MPD>{}</MPD>", "<a/>".repeat(NODES_MAX as usize))).is_none());
        assert!(parse(&format!("<MPD>{}</MPD>", " ".repeat(BYTES_MAX))).is_none());
        // A short template that becomes a long path.
        let id = "x".repeat(URL_MAX);
        let text = format!(
            "<MPD><Period><AdaptationSet><Representation id='{id}'>\
             <SegmentTemplate media='{}'/></Representation></AdaptationSet></Period></MPD>",
            "$RepresentationID$".repeat(100)
        );
        assert_eq!(parse(&text).unwrap().beginnings, []);
    }

    #[test]
    fn few_representations_are_looked_at() {
        let representation =
            "<Representation id='1'><SegmentTemplate media='$Number$.m4s'/></Representation>";
        let text = format!(
            "<MPD><Period><AdaptationSet>{}</AdaptationSet></Period></MPD>",
            representation.repeat(100)
        );
        assert_eq!(parse(&text).len(), REPRESENTATIONS_MAX);
    }
}
