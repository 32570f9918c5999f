//! The names of the hidden files of a mount, from which an image is written and read.

/// The beginning of all of them.
const BEGINNING: &str = ".copperfs-image-";

/// The files of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HiddenFile {
    /// Its names and attributes ([`super::transfer`]).
    Tree = 0,
    /// Its contents.
    Data = 1,
}

impl HiddenFile {
    fn suffix(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Data => "data",
        }
    }

    /// The name of this file of image `number`.
    #[must_use]
    pub fn name(self, number: u32) -> String {
        format!("{BEGINNING}{number}.{}", self.suffix())
    }
}

/// The image and the file that `name` is of. `None` if it does not begin as such a name does; the inner `None` if it is
/// none all the same.
#[must_use]
pub fn parse(name: &[u8]) -> Option<Option<(u32, HiddenFile)>> {
    let rest = name.strip_prefix(BEGINNING.as_bytes())?;
    let parts = std::str::from_utf8(rest)
        .ok()
        .and_then(|text| text.split_once('.'));
    Some(parts.and_then(|(number, suffix)| {
        let mut files = [HiddenFile::Tree, HiddenFile::Data].into_iter();
        let file = files.find(|file| file.suffix() == suffix)?;
        Some((number.parse().ok()?, file))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_others() {
        for file in [HiddenFile::Tree, HiddenFile::Data] {
            let name = file.name(17);
            assert_eq!(parse(name.as_bytes()), Some(Some((17, file))));
        }
        assert_eq!(parse(b"lus"), None);
        for none in ["", "1", "1.other", "x.tree", "-1.data", "4294967296.data"] {
            assert_eq!(parse(format!("{BEGINNING}{none}").as_bytes()), Some(None));
        }
    }
}
