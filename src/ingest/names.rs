//! Names of files that are published: all except hidden and temporary ones.
//!
//! Every component of a path is judged, so nothing below `.git` is published either. In a pattern,
//! `*` stands for any characters; case is ignored. A name that matches `allow` is published even if
//! it matches `refuse` too.

use std::path::{Component, Path};

/// Names refused by default.
pub const REFUSED: [&str; 16] = [
    // Hidden: .env, .git, .htpasswd, .DS_Store, .nfs0001; rsync's .name.Xa1b2c, vim's .name.swp,
    // LibreOffice's .~lock.name#.
    ".*",
    // Backups and lock files of editors and office programs.
    "*~",
    "~*",
    "#*#",
    "*.swp",
    "*.bak",
    // Files being written: ffmpeg and packagers write NAME.tmp and rename it, downloads write
    // NAME.part and the like. yt-dlp writes fragments to NAME.part-Frag3, and lists them in
    // NAME.ytdl.
    "*.tmp",
    "*.temp",
    "*.part",
    "*.part-*",
    "*.partial",
    "*.filepart",
    "*.crdownload",
    "*.download",
    "*.ytdl",
    // Files recovered by a file system check.
    "lost+found",
];

/// Decides which names are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    refuse: Vec<Pattern>,
    allow: Vec<Pattern>,
}

/// A name with wildcards, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern(Vec<char>);

/// Why a pattern is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The text is empty.
    #[error("an empty pattern matches nothing")]
    Empty,
    /// It has more than one component.
    #[error("a pattern matches one component of a path and must not contain `/`")]
    Separator,
    /// It is longer than any file name.
    #[error("the pattern is longer than any file name")]
    TooLong,
}

impl Names {
    /// Parses the patterns; an error names the invalid one.
    pub fn new(refuse: &[String], allow: &[String]) -> Result<Self, (String, PatternError)> {
        let parse = |texts: &[String]| {
            texts
                .iter()
                .map(|text| Pattern::parse(text).map_err(|error| (text.clone(), error)))
                .collect::<Result<_, _>>()
        };
        Ok(Self {
            refuse: parse(refuse)?,
            allow: parse(allow)?,
        })
    }

    /// Of the hidden names that are most often private, those that are published.
    pub fn published_hidden(&self) -> Vec<&'static str> {
        HIDDEN
            .into_iter()
            .filter(|name| self.publish_name(name))
            .collect()
    }

    /// Whether a path below the folder is published.
    pub fn publish(&self, path: &Path) -> bool {
        path.components().all(|component| match component {
            Component::Normal(name) => self.publish_name(&name.to_string_lossy()),
            _ => false,
        })
    }

    /// Whether a component of a path may be published.
    pub fn publish_name(&self, name: &str) -> bool {
        let name: Vec<char> = name.to_lowercase().chars().collect();
        let is_in = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(&name));
        !is_in(&self.refuse) || is_in(&self.allow)
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, PatternError> {
        match text {
            "" => Err(PatternError::Empty),
            _ if text.contains('/') => Err(PatternError::Separator),
            _ if text.len() > PATTERN_BYTES_MAX => Err(PatternError::TooLong),
            _ => Ok(Self(text.to_lowercase().chars().collect())),
        }
    }

    /// Backtracks to the last `*` only, so the time is at most the product of both lengths.
    fn matches(&self, name: &[char]) -> bool {
        let (mut at, mut in_name) = (0, 0);
        let mut last_star = None;
        while in_name < name.len() {
            match self.0.get(at) {
                Some('*') => {
                    last_star = Some((at, in_name));
                    at += 1;
                }
                Some(letter) if *letter == name[in_name] => {
                    at += 1;
                    in_name += 1;
                }
                _ => {
                    let Some((star, taken)) = last_star else {
                        return false;
                    };
                    last_star = Some((star, taken + 1));
                    at = star + 1;
                    in_name = taken + 1;
                }
            }
        }
        self.0[at..].iter().all(|letter| *letter == '*')
    }
}

/// Names that often hold keys and passwords.
const HIDDEN: [&str; 4] = [".env", ".git", ".htpasswd", ".ssh"];
/// The longest file name that file systems allow.
const PATTERN_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(allow: &[&str]) -> Names {
        let texts = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        Names::new(&texts(&REFUSED), &texts(allow)).unwrap()
    }

    #[test]
    fn hidden_and_temporary_names_are_refused() {
        let names = names(&[".well-known"]);
        for (path, is_public) in [
            ("seg.ts", true),
            ("a/b/seg.ts", true),
            ("a.b/.c/d.ts", false),
            (".env", false),
            (".git/config", false),
            (".well-known/x", true),
            (".WELL-KNOWN/x", true),
            (".well-known/.x", false),
            (".well-known2", false),
            ("x.TMP", false),
            ("x.tmp.ts", true),
            ("seg.m4s.tmp", false),
            ("x.part", false),
            ("x.mp4.part-Frag3", false),
            ("x.mp4.ytdl", false),
            ("x-part-1.ts", true),
            ("part", true),
            ("x~", false),
            ("~$report.doc", false),
            ("#x#", false),
            ("#x", true),
            ("#", true),
            ("lost+found/x", false),
            ("../x", false),
        ] {
            assert_eq!(names.publish(Path::new(path)), is_public, "{path}");
        }
        assert!(
            Names::new(&[], &[]).unwrap().publish(Path::new(".env")),
            "whoever wants that gets it"
        );
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcd", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxa", false),
            ("a", "ab", false),
            ("É*", "éa", true),
        ] {
            let name: Vec<char> = name.to_lowercase().chars().collect();
            assert_eq!(
                Pattern::parse(pattern).unwrap().matches(&name),
                matches,
                "{pattern} {name:?}"
            );
        }
        let long: Vec<char> = "a".repeat(2000).chars().collect();
        assert!(
            !Pattern::parse(&"*a".repeat(100))
                .map(|pattern| pattern.matches(&[&long[..], &['b']].concat()))
                .unwrap()
        );
        for (text, error) in [("", PatternError::Empty), ("a/b", PatternError::Separator)] {
            assert_eq!(Pattern::parse(text), Err(error));
        }
        assert_eq!(Pattern::parse(&"a".repeat(256)), Err(PatternError::TooLong));
    }
}
