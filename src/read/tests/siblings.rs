//! Listings that are prefetched for readers that walk a tree.

use super::*;

/// A directory of directories of one file each; counts the listings.
#[derive(Default)]
struct Tree {
    directories: usize,
    listed: Mutex<Vec<String>>,
}

impl Tree {
    fn entry(name: String, kind: FileKind) -> Entry {
        Entry {
            name: name.into(),
            kind,
            attributes: None,
        }
    }
}

impl Files for Tree {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let path = request.path;
        let name = String::from_utf8_lossy(path.as_bytes()).into_owned();
        self.listed.lock().push(name);
        let entries = if path.is_root() {
            let names = (0..self.directories).map(|at| format!("d{at:03}"));
            names
                .map(|name| Self::entry(name, FileKind::Directory))
                .collect()
        } else {
            vec![Self::entry("file".to_owned(), FileKind::File)]
        };
        let listing = Listing {
            directory: attributes(FileKind::Directory, 0, 0),
            entries,
            next: None,
        };
        std::future::ready(Ok(Listed::new(listing, request.known))).boxed()
    }

    unasked!(stat, read, xattrs, usage);
}

fn tree(directories: usize) -> (ReadPath, Arc<Tree>) {
    let tree = Arc::new(Tree {
        directories,
        ..Tree::default()
    });
    (alone(&options(), Arc::clone(&tree) as Arc<dyn Files>), tree)
}

async fn list(path: &ReadPath, name: &str) {
    let directory = ItemPath::parse(name.as_bytes()).unwrap();
    path.page_with(&directory, 0).await.unwrap();
    settle().await;
}

#[tokio::test]
async fn the_directories_behind_a_walker_are_listed_once_each_and_ahead() {
    let (path, tree) = tree(100);
    list(&path, "").await;
    list(&path, "d000").await;
    assert_eq!(tree.listed.lock().len(), 2, "one says nothing");
    list(&path, "d001").await;
    let ahead = tree.listed.lock().len();
    assert!(ahead > 4, "{ahead}");
    let mut waited = 0;
    for at in 2..100 {
        let name = format!("d{at:03}");
        let directory = ItemPath::parse(name.as_bytes()).unwrap();
        waited += usize::from(path.metadata().try_directory(&directory).is_none());
        list(&path, &name).await;
    }
    assert_eq!(waited, 0);
    let mut listed = tree.listed.lock().clone();
    assert_eq!(listed.len(), 101);
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), 101, "some were listed twice");
}

#[tokio::test]
async fn a_program_that_picks_directories_has_none_listed_ahead() {
    let (path, tree) = tree(100);
    list(&path, "").await;
    for name in ["d050", "d010", "d070", "d030", "d010"] {
        list(&path, name).await;
    }
    assert_eq!(tree.listed.lock().len(), 5);
}
