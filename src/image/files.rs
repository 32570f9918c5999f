//! The names of the files from which an image is written and read.

/// The socket in the runtime directory of a mount where a daemon takes a connection over which the kernel reads the files.
pub const SOCKET: &str = "images.sock";

/// The files of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageFile {
    /// Its names and attributes ([`super::transfer`]).
    Tree = 0,
    /// Its contents, as small files are read.
    Small = 1,
    /// The same, as large files are read.
    Large = 2,
}

impl ImageFile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tree, Self::Small, Self::Large];

    fn suffix(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Small => "small",
            Self::Large => "large",
        }
    }

    /// The name of this file of image `number`.
    #[must_use]
    pub fn name(self, number: u32) -> String {
        format!("{number}.{}", self.suffix())
    }
}

/// The image and the file that `name` is of; `None` if it is the name of none.
#[must_use]
pub fn parse(name: &[u8]) -> Option<(u32, ImageFile)> {
    let (number, suffix) = std::str::from_utf8(name).ok()?.split_once('.')?;
    let mut files = ImageFile::ALL.into_iter();
    let file = files.find(|file| file.suffix() == suffix)?;
    let number = number.parse().ok()?;
    // Each file has one name: `+1` and `01` are numbers, too.
    (file.name(number).as_bytes() == name).then_some((number, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_others() {
        for file in ImageFile::ALL {
            let name = file.name(17);
            assert_eq!(parse(name.as_bytes()), Some((17, file)));
        }
        let others = [
            "", "1", "1.other", "x.tree", "-1.small", "+1.small", "01.large",
        ];
        for none in [&others[..], &["4294967296.small", "lus"]].concat() {
            assert_eq!(parse(none.as_bytes()), None);
        }
    }
}
