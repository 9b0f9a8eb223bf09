use super::*;
use std::os::unix::fs::symlink;

#[test]
fn request_paths_are_absolute_and_normalised_or_refused() {
    let long = format!("/{}", "x".repeat(256));
    let longer = "/x".repeat(2048);
    for (text, expected) in [
        ("/var/lib/kubelet/pods/p/mount", Ok("/var/lib/kubelet/pods/p/mount")),
        ("//var///lib/./x/", Ok("/var/lib/x")),
        ("/a b/ü;$(x)`", Ok("/a b/ü;$(x)`")),
        ("", Err(RequestPathError::Empty)),
        ("var/lib", Err(RequestPathError::Relative("var/lib".into()))),
        ("/var/../etc", Err(RequestPathError::Dots("/var/../etc".into()))),
        ("/..", Err(RequestPathError::Dots("/..".into()))),
        ("/", Err(RequestPathError::Root)),
        ("/./", Err(RequestPathError::Root)),
        ("/a\0b", Err(RequestPathError::Control("/a\0b".into()))),
        ("/a\nb", Err(RequestPathError::Control("/a\nb".into()))),
        (&long, Err(RequestPathError::TooLong(256))),
        (&longer, Err(RequestPathError::TooLong(4096))),
    ] {
        let parsed = RequestPath::parse(text).map(|path| path.0);
        assert_eq!(parsed, expected.map(PathBuf::from), "{text:?}");
    }
}

struct Tree {
    dir: tempfile::TempDir,
    base: Base,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("base")).unwrap();
        let base = Base::open(&dir.path().join("base")).unwrap();
        Self { dir, base }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("base").join(below)
    }

    fn place(&self, below: &str) -> Result<Place, PlaceError> {
        self.base.place(&RequestPath::parse(self.path(below).to_str().unwrap()).unwrap())
    }
}

#[test]
fn only_what_lies_below_the_base_is_reached() {
    let tree = Tree::new();
    for outside in ["/etc/passwd", tree.dir.path().to_str().unwrap(), tree.path("").to_str().unwrap()] {
        let place = tree.base.place(&RequestPath::parse(outside).unwrap());
        assert!(matches!(place, Err(PlaceError::Outside { .. })), "{outside}");
    }
    assert!(matches!(tree.place("no/such/parent"), Err(PlaceError::NoParent { .. })));
    assert_eq!(tree.place("new").unwrap().kind().unwrap(), Kind::Missing);
}

#[test]
fn a_base_may_itself_be_reached_through_a_symlink() {
    let tree = Tree::new();
    let link = tree.dir.path().join("link");
    symlink(tree.path(""), &link).unwrap();
    let base = Base::open(&link).unwrap();
    let place = base.place(&RequestPath::parse(link.join("x").to_str().unwrap()).unwrap()).unwrap();
    assert_eq!(place.path(), tree.path("x").canonicalize().unwrap_or(tree.path("x")));
    place.ensure_directory().unwrap();
    assert!(tree.path("x").is_dir());
}

#[test]
fn a_symlink_on_the_way_is_refused() {
    let tree = Tree::new();
    symlink("/etc", tree.path("out")).unwrap();
    std::fs::create_dir(tree.path("real")).unwrap();
    symlink("real", tree.path("inside")).unwrap();
    for path in ["out/x", "inside/x"] {
        assert!(matches!(tree.place(path), Err(PlaceError::Symlink { .. })), "{path}");
    }
    assert!(std::fs::read_dir(tree.path("real")).unwrap().next().is_none());
}

#[test]
fn a_symlink_swapped_in_at_the_end_is_refused_by_every_deed() {
    let tree = Tree::new();
    std::fs::create_dir(tree.dir.path().join("victim")).unwrap();
    let place = tree.place("target").unwrap();
    place.ensure_directory().unwrap();
    std::fs::remove_dir(tree.path("target")).unwrap();
    symlink(tree.dir.path().join("victim"), tree.path("target")).unwrap();

    assert_eq!(place.kind().unwrap(), Kind::Symlink);
    assert!(matches!(place.ensure_directory(), Err(PlaceError::Symlink { .. })));
    assert!(matches!(place.ensure_file(), Err(PlaceError::Symlink { .. })));
    assert!(matches!(place.handle(), Err(PlaceError::Symlink { .. })));
    assert!(matches!(place.open_directory(), Err(PlaceError::Symlink { .. })));
    assert!(matches!(place.remove(), Err(PlaceError::Symlink { .. })));
    assert!(tree.dir.path().join("victim").is_dir());
}

#[test]
fn a_parent_that_is_moved_away_and_replaced_is_still_the_one_that_was_opened() {
    let tree = Tree::new();
    std::fs::create_dir(tree.path("parent")).unwrap();
    let place = tree.place("parent/target").unwrap();
    std::fs::rename(tree.path("parent"), tree.path("moved")).unwrap();
    symlink("/etc", tree.path("parent")).unwrap();
    place.ensure_directory().unwrap();
    assert!(tree.path("moved/target").is_dir());
}

#[test]
fn places_are_made_and_removed_idempotently_and_never_with_content() {
    let tree = Tree::new();
    let place = tree.place("x").unwrap();
    place.remove().unwrap();
    for _ in 0..2 {
        place.ensure_directory().unwrap();
    }
    assert!(matches!(place.ensure_file(), Err(PlaceError::Kind { found: Kind::Directory, .. })));
    std::fs::write(tree.path("x/precious"), "data").unwrap();
    assert!(matches!(place.remove(), Err(PlaceError::NotEmpty { .. })));
    std::fs::remove_file(tree.path("x/precious")).unwrap();
    place.remove().unwrap();
    for _ in 0..2 {
        place.ensure_file().unwrap();
    }
    assert!(matches!(place.ensure_directory(), Err(PlaceError::Kind { found: Kind::File, .. })));
    std::fs::write(tree.path("x"), "data").unwrap();
    assert!(matches!(place.remove(), Err(PlaceError::NotEmpty { .. })));
    std::fs::write(tree.path("x"), "").unwrap();
    place.remove().unwrap();
    assert_eq!(place.kind().unwrap(), Kind::Missing);
}
