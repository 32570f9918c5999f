//! The rules of the format, checked before a manifest is used.

use super::header::Header;
use super::lookup::Lookup;
use super::sections::Sections;
use super::{Entry, FormatError, TRAILER_BYTES, parts_of, to_usize, version_of};
use copperfs_overlay::ItemPath;

/// Checks that the bytes are those that were written.
pub(super) fn checksum(bytes: &[u8]) -> Result<(), FormatError> {
    let (summed, sum) = bytes
        .split_last_chunk::<TRAILER_BYTES>()
        .ok_or(FormatError::Damaged("it ends early"))?;
    match blake3::hash(summed).as_bytes() == sum {
        true => Ok(()),
        false => Err(FormatError::Damaged("its checksum")),
    }
}

/// Checks all rules but those about the places of entries, which [`places`] checks.
pub(super) fn rules(header: &Header, sections: &Sections) -> Result<(), FormatError> {
    for gap in sections.layout.gaps() {
        let bytes = sections.bytes.get(to_usize(gap.start)..to_usize(gap.end));
        if bytes.is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            return Err(invalid("byte", gap.start, "is in a gap and not 0"));
        }
    }
    files(header, sections)?;
    entries(header, sections)
}

fn files(header: &Header, sections: &Sections) -> Result<(), FormatError> {
    let mut end = 0;
    for file in 0..to_usize(header.counts.files) {
        let fault = |fault| invalid("file", file as u64, fault);
        let path = sections.path(file).ok_or_else(|| fault("has no path"))?;
        let is_canonical = |found: &ItemPath| !found.is_root() && found.as_bytes() == path;
        if !ItemPath::parse(path).is_ok_and(|found| is_canonical(&found)) {
            return Err(fault("has a path that no file can have"));
        }
        if sections.version(file).and_then(version_of).is_none() {
            return Err(fault("has a version that no file can have"));
        }
        end = sections.path_range(file).map_or(0, |range| range.end);
    }
    if end != header.counts.path_bytes {
        return Err(invalid("header", 0, "has another number of bytes of paths"));
    }
    Ok(())
}

/// The state of the pass over all entries.
#[derive(Default)]
struct Pass {
    files: u64,
    long: u64,
    parts: u64,
    bytes: u64,
    identity: blake3::Hasher,
}

fn entries(header: &Header, sections: &Sections) -> Result<(), FormatError> {
    let mut pass = Pass::default();
    for number in 0..to_usize(header.counts.entries) {
        let added = match sections.entry(number) {
            Some(entry) => pass.add(number, &entry, sections),
            None => Err("does not exist"),
        };
        added.map_err(|fault| invalid("entry", number as u64, fault))?;
    }
    let Pass {
        files,
        long,
        parts,
        bytes,
        identity,
    } = pass;
    let counts = &header.counts;
    let found = (files, long, parts, bytes);
    if found != (counts.files, counts.long, counts.parts, header.entry_bytes) {
        return Err(invalid("header", 0, "has other counts than its entries"));
    }
    if *identity.finalize().as_bytes() != header.identity {
        return Err(invalid(
            "header",
            0,
            "has another identity than its entries",
        ));
    }
    Ok(())
}

impl Pass {
    fn add(
        &mut self,
        number: usize,
        entry: &Entry,
        sections: &Sections,
    ) -> Result<(), &'static str> {
        let file = u64::from(entry.file);
        if file > self.files {
            return Err("is of a file that is not in the order of first entries");
        }
        self.files = self.files.max(file + 1);
        let size = sections.size(entry.file as usize);
        let size = size.ok_or("is of a file that does not exist")?;
        let end = entry.offset.checked_add(entry.length);
        if end.is_none_or(|end| end > size) {
            return Err("reaches beyond the end of its file");
        }
        if entry.length == 0 && size != 0 {
            return Err("is empty, and its file is not");
        }
        let parts = parts_of(entry.length);
        if parts > 0 {
            if sections.long(to_usize(self.long)) != Some((number as u64, self.parts)) {
                return Err("is long, and its parts are not where they should be");
            }
            self.long += 1;
            // No sum of parts overflows, because the sum of lengths does not.
            self.parts += parts;
        }
        let sum = self.bytes.checked_add(entry.length);
        self.bytes = sum.ok_or("is too long beside the entries before it")?;
        self.identity.update(&entry.hash.0);
        self.identity.update(&entry.length.to_le_bytes());
        Ok(())
    }
}

/// Checks that no two files have the same path, and that no two entries share a byte or a place.
pub(super) fn places(lookup: &Lookup, sections: &Sections) -> Result<(), FormatError> {
    for pair in lookup.by_path.windows(2) {
        if sections.path(pair[0] as usize) == sections.path(pair[1] as usize) {
            let fault = "has the path of an earlier file";
            return Err(invalid("file", pair[1].into(), fault));
        }
    }
    for file in 0..lookup.by_path.len() {
        for pair in lookup.of_file(file).windows(2) {
            let extents = pair.iter().map(|entry| sections.extent(*entry as usize));
            let extents: Option<Vec<_>> = extents.collect();
            if let Some([before, after]) = extents.as_deref()
                && (after.0 < before.1 || after.0 == before.0)
            {
                let fault = "overlaps another entry of its file";
                return Err(invalid("entry", pair[1].into(), fault));
            }
        }
    }
    Ok(())
}

fn invalid(item: &'static str, number: u64, fault: &'static str) -> FormatError {
    FormatError::Invalid {
        item,
        number,
        fault,
    }
}
