//! How deeply a TOML text is nested, found out without nesting calls.
//!
//! Tables of a configuration are a few levels deep. Whoever may write to the store could write ten
//! thousand levels in a few bytes, and everything that walks through tables calls itself: it would
//! end the process.

use std::iter::Peekable;
use std::str::Chars;

/// Whether a text has at most [`LEVELS_MAX`] levels and [`PARTS_MAX`] parts of a key. What the
/// parser would have to guess at, such as a string without an end, counts as too deep.
pub(super) fn is_flat(text: &str) -> bool {
    measure(text).is_some()
}

fn measure(text: &str) -> Option<()> {
    let mut chars = text.chars().peekable();
    // The levels of the header that counts, with those of a header that is being read.
    let mut header = 0;
    // Brackets that are open, and the dots since the last key or value began in each.
    let mut open: Vec<(char, usize)> = Vec::new();
    let mut dots = 0;
    let (mut is_value, mut is_header) = (false, false);
    while let Some(char) = chars.next() {
        match char {
            '#' => while chars.next_if(|char| !matches!(char, '\n' | '\r')).is_some() {},
            // A carriage return alone ends no line here, but might elsewhere.
            '\r' if chars.peek() != Some(&'\n') => return None,
            '"' | '\'' => skip_string(char, &mut chars)?,
            '\n' if open.is_empty() => (dots, is_value, is_header) = (0, false, false),
            '[' | '{' => {
                if open.is_empty() && !is_value {
                    if !is_header {
                        (header, is_header) = (0, true);
                    }
                    // Whatever stands between the brackets of one line.
                    header += 1;
                }
                open.push((char, dots));
                dots = 0;
            }
            ']' | '}' => {
                let (opened, before) = open.pop()?;
                if (opened == '[') != (char == ']') {
                    return None;
                }
                dots = before;
            }
            '=' if open.is_empty() => is_value = true,
            // The key of an inline table goes on in its value.
            ',' => dots = 0,
            '\n' if open.last().is_some_and(|(opened, _)| *opened == '[') => dots = 0,
            '.' => {
                dots += 1;
                if is_header && !is_value {
                    header += 1;
                }
            }
            _ => {}
        }
        let within: usize = open.iter().map(|(_, dots)| dots + 1).sum();
        if dots >= PARTS_MAX || header + within + dots > LEVELS_MAX {
            return None;
        }
    }
    open.is_empty().then_some(())
}

/// Skips a string whose first quote was read. `None` if it does not end.
fn skip_string(quote: char, chars: &mut Peekable<Chars<'_>>) -> Option<()> {
    let is_escaped = quote == '"';
    if chars.next_if_eq(&quote).is_none() {
        // On one line.
        loop {
            match chars.next()? {
                '\n' | '\r' => return None,
                '\\' if is_escaped => drop(chars.next_if(|char| !matches!(char, '\n' | '\r'))?),
                char if char == quote => return Some(()),
                _ => {}
            }
        }
    }
    if chars.next_if_eq(&quote).is_none() {
        // An empty one.
        return Some(());
    }
    let mut quotes = 0;
    loop {
        match chars.next()? {
            '\\' if is_escaped => {
                quotes = 0;
                chars.next()?;
            }
            char if char == quote => quotes += 1,
            _ => quotes = 0,
        }
        if quotes == 3 {
            // One or two may stand before the end.
            let _ = chars
                .next_if_eq(&quote)
                .and_then(|_| chars.next_if_eq(&quote));
            return Some(());
        }
    }
}

/// The deepest nesting; a document needs about five levels.
const LEVELS_MAX: usize = 16;
/// The most parts of a key between dots.
const PARTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_flat() {
        let text = r##"
# [[[[[[[[[[[[[[[[[[[[[ { { { { {
[admission] # "
keys = "https://keys.example/a.b.c.d.e.f.g.h.i.j.k.l.m.n"
[stream.live]
origin = 'https://origin.example/\' # '
headers = { authorization = { file = "a" }, "x.y" = "{[{[" }
path = """
[[[[[[[[[[[[[[[[[[[[[[[ \""" " "" ]"""""
other = '''[[[[[[[[[[[[[[[[[[[[[[ " \'''
empty = ""
none = ''
list = [
  "a", # ]
  "b",
]
at = 1979-05-27T07:32:00.999Z
[[stream."a]"."b".c]]
"##;
        assert!(toml::from_str::<toml::Table>(text).is_ok());
        assert!(is_flat(text));
        assert!(is_flat(&text.replace('\n', "\r\n")));
        let many = "a = { b = { c.d = 1.5 } }\n".repeat(1000);
        assert!(is_flat(&many));
        let list = format!("a = [{}]", "1.5, ".repeat(1000));
        assert!(is_flat(&list));
    }

    #[test]
    fn deep_nesting_is_found() {
        for text in [
            format!("a={}{}", "[".repeat(17), "]".repeat(17)),
            format!("a={}1{}", "{a=".repeat(17), "}".repeat(17)),
            format!("a={}1{}", "{a.a.a.a.a.a.a=".repeat(3), "}".repeat(3)),
            format!("a{}=1", ".a".repeat(8)),
            format!("a{}=1", ".\"a\"".repeat(8)),
            format!("a{}=1", " . a".repeat(8)),
            format!("[a{}]", ".a".repeat(8)),
            format!("[[a{}]]", ".a".repeat(8)),
            format!(
                "[a.a.a.a.a.a.a]\nb=1\na.a.a.a.a={}1{}",
                "{a=".repeat(6),
                "}".repeat(6)
            ),
            "a = \"[".to_owned(),
            "a = \"\n[[\"".to_owned(),
            "a = '\n'".to_owned(),
            "a = \"\"\"\"\"".to_owned(),
            "a = [}".to_owned(),
            "a = ]".to_owned(),
            "a = [".to_owned(),
            "# \ra = 1".to_owned(),
        ] {
            assert!(!is_flat(&text), "{text}");
        }
    }
}
