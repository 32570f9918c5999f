//! Suggestions for misspelt words.

/// The known word nearest to `word`, if it is near enough for a suggestion.
#[must_use]
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(
            |candidate| match strsim::damerau_levenshtein(word, candidate) {
                0 | 1 => (1.0, candidate),
                _ => (strsim::jaro_winkler(word, candidate), candidate),
            },
        )
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::KEYS;

    #[test]
    fn a_misspelt_word_finds_its_neighbour() {
        let nearest = |word| nearest(word, KEYS.iter().map(|key| key.name));
        assert_eq!(nearest("memroy"), Some("memory"));
        assert_eq!(nearest("secretfile"), Some("secret_file"));
        assert_eq!(nearest("zzz"), None);
    }
}
