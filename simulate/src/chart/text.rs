//! Widths, lines and numbers of the text in charts.
//!
//! An SVG file has no fonts, so its renderer chooses the font. Widths are estimated from DejaVu Sans,
//! one of the widest usual fonts, so that text also fits in others.

/// Returns the estimated width of `text` in pixels, if its font has `size` pixels.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let part = |letter: char| match letter {
        'i' | 'j' | 'l' | '\'' | '|' | '.' | ',' | ':' | ';' | ' ' | '(' | ')' | 'I' | '-' => 0.40,
        'f' | 'r' | 't' | '/' | '"' => 0.45,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '+' | '=' | '<' | '>' | '×' | '≤' | '≥' => 1.0,
        'A'..='Z' => 0.78,
        _ if letter.is_ascii() => 0.64,
        // Other scripts have wider letters.
        _ => 1.0,
    };
    size * text.chars().map(part).sum::<f64>()
}

/// Splits each line of `text` into lines of at most `limit` pixels, between words where that is possible.
pub(super) fn wrapped(text: &str, size: f64, limit: f64) -> Vec<String> {
    text.lines()
        .flat_map(|line| wrapped_line(line, size, limit))
        .collect()
}

fn wrapped_line(line: &str, size: f64, limit: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut room = limit;
    for word in line.split_inclusive(' ') {
        let wanted = width(word.trim_end(), size);
        if wanted > room && room < limit {
            lines.push(String::new());
            room = limit;
        }
        if wanted <= room {
            append(&mut lines, word);
            room -= width(word, size);
            continue;
        }
        // One word alone is too wide, such as a long name of a workload.
        for letter in word.chars() {
            let wanted = width(letter.encode_utf8(&mut [0; 4]), size);
            if wanted > room {
                lines.push(String::new());
                room = limit;
            }
            append(&mut lines, letter.encode_utf8(&mut [0; 4]));
            room -= wanted;
        }
    }
    lines
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn append(lines: &mut [String], text: &str) {
    if let Some(line) = lines.last_mut() {
        line.push_str(text);
    }
}

/// Formats a number for people: `12,000`, `373`, `2.5`, `0.001`.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature of plotters"
)]
pub(super) fn number(value: &f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        0.1.. => 2,
        _ => 6,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let whole = thousands(whole);
    if fraction.is_empty() {
        whole
    } else {
        format!("{whole}.{fraction}")
    }
}

/// Returns the digits of a whole number in groups of three: `12,000`.
pub(crate) fn thousands(digits: &str) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let rest = digits.len() - index;
        if index > 0 && rest.is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_thousands_separators() {
        for (value, text) in [
            (2.5, "2.5"),
            (12_000.0, "12,000"),
            (-100_000.0, "-100,000"),
            (373.4, "373"),
            (0.001, "0.001"),
            (1e-6, "0.000001"),
            (0.0, "0"),
        ] {
            assert_eq!(number(&value), text);
        }
    }

    #[test]
    fn lines_are_split_between_words_and_within_long_ones() {
        let text = "jobs that share their dataset";
        assert_eq!(wrapped(text, 10.0, 1e3), [text]);
        let lines = wrapped(text, 10.0, 120.0);
        assert!(lines.len() > 1 && lines.iter().all(|line| width(line, 10.0) <= 120.0));
        assert_eq!(lines.join(" "), text);
        let long = "x".repeat(50);
        let lines = wrapped(&format!("a {long}"), 10.0, 100.0);
        assert!(
            lines.iter().all(|line| width(line, 10.0) <= 100.0),
            "{lines:?}"
        );
        assert_eq!(lines.concat(), format!("a{long}"));
        assert_eq!(wrapped("one\ntwo", 10.0, 100.0), ["one", "two"]);
    }
}
