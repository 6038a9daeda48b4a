//! Text from the other side, made safe to show.
//!
//! Reasons are for people, so they end on terminals, in logs and on pages. A reason may contain
//! everything that UTF-8 can express: sequences that move the cursor or change a terminal's title,
//! marks that turn the direction of text, invisible characters. Such text is made plain where it
//! comes in, so that later code can show it as it is.

/// Replaces each character that is not shown.
const INSTEAD: char = char::REPLACEMENT_CHARACTER;

/// Whether a character is shown as it is: it takes its place in the line and has no other effect.
pub fn is_plain(character: char) -> bool {
    !(character.is_control() || is_invisible(character))
}

/// The plain form of `text`, of at most this many bytes: one line, of plain characters.
pub fn plain(text: &str, bytes_max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(bytes_max));
    for character in text.chars().map(|character| {
        if is_plain(character) {
            character
        } else {
            INSTEAD
        }
    }) {
        if shown.len() + character.len_utf8() > bytes_max {
            break;
        }
        shown.push(character);
    }
    shown
}

/// Whether a character has no shape of its own: it turns the direction of text, joins or separates
/// its neighbours, ends lines or paragraphs, or annotates text invisibly (Unicode's format
/// characters, fillers and separators).
const fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_more_than_take_its_place_is_not_shown() {
        assert_eq!(
            plain("the origin answered 503: ça va, 日本", 100),
            "the origin answered 503: ça va, 日本"
        );
        assert_eq!(
            plain("\u{1b}[2J\u{1b}]0;owned\u{7}x\ny\r\tz\u{7f}\u{9b}1m", 100),
            "�[2J�]0;owned�x�y��z��1m"
        );
        assert_eq!(
            plain(
                "a\u{202e}gpj.exe\u{2066}\u{200b}\u{feff}\u{e0041}\u{2028}b",
                100
            ),
            "a�gpj.exe�����b"
        );
    }

    #[test]
    fn what_is_too_long_ends_with_a_whole_character() {
        assert_eq!(
            (
                plain("日本", 5).as_str(),
                plain("日本", 6).as_str(),
                plain("abc", 0).as_str()
            ),
            ("日", "日本", "")
        );
        // The replacement may be longer than the character.
        assert_eq!(plain("\u{1b}\u{1b}", 5), "�");
    }
}
