use super::*;
use crate::base::scan::{self, Keep};
use crate::base::tree;
use crate::compose::spec::Change;

const SITE: &str = "usr/local/lib/python3.12/dist-packages";
const OLD: &str = "ignored = {\n    \"a\",\n}\n";

fn index() -> TreeIndex {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |path: &str, mode: u32, body: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_uid(7);
        header.set_gid(8);
        header.set_size(body.len() as u64);
        builder.append_data(&mut header, path, body.as_bytes()).unwrap();
    };
    add(&format!("{SITE}/vllm/config/cache.py"), 0o640, OLD);
    add(&format!("{SITE}/vllm/config/cache_more.py"), 0o644, OLD);
    for tag in ["cpython-312", "cpython-312.opt-1", "cpython-311"] {
        add(&format!("{SITE}/vllm/config/__pycache__/cache.{tag}.pyc"), 0o644, "0123456789abcdefgh");
    }
    add(&format!("{SITE}/vllm/config/__pycache__/cache_more.cpython-312.pyc"), 0o644, "x");
    add(&format!("{SITE}/vllm-1.dist-info/METADATA"), 0o644, "Name: vllm\nVersion: 1\n");
    let record = "vllm/config/cache.py,sha256=old,19\r\nvllm/config/cache_more.py,sha256=keep,9\r\nvllm/config/__pycache__/cache.cpython-312.pyc,,\r\nvllm-1.dist-info/RECORD,,\r\n";
    add(&format!("{SITE}/vllm-1.dist-info/RECORD"), 0o644, record);
    let keep: Keep = [format!("{SITE}/vllm/config/cache.py")].into();
    let scan = scan::layer(&builder.into_inner().unwrap()[..], &keep).unwrap();
    tree::merge(Vec::new(), vec![scan], &keep).unwrap()
}

fn edit(preimage: Option<&str>) -> Edits {
    let change = Change::InsertAfter { anchor: "\"a\",\n".into(), text: "    \"b\",\n".into() };
    let preimage = preimage.map(str::to_owned);
    Edits { edits: vec![Edit { path: format!("/{SITE}/vllm/config/cache.py"), preimage, postimage: None, change }] }
}

#[test]
fn an_edit_takes_compiled_forms_and_the_record_with_it() {
    let index = index();
    let parts = parts(&edit(Some(&hex(OLD.as_bytes()))), &Overlay::new(Some(&index)), 5).unwrap();
    let [file, record] = parts.entries.as_slice() else { panic!("{:?}", parts.entries) };
    assert_eq!((file.meta.mode, file.meta.uid, file.meta.gid, file.meta.mtime), (0o640, 7, 8, 5));
    let Node::File(Body::Bytes(bytes)) = &file.node else { panic!() };
    assert_eq!(bytes, b"ignored = {\n    \"a\",\n    \"b\",\n}\n");
    let removed: Vec<&str> = parts.removes.iter().map(|(p, _)| p.rsplit('/').next().unwrap()).collect();
    assert_eq!(removed, ["cache.cpython-311.pyc", "cache.cpython-312.opt-1.pyc", "cache.cpython-312.pyc"]);
    let Node::File(Body::Bytes(text)) = &record.node else { panic!() };
    let expected = format!(
        "vllm/config/cache.py,sha256={},{}\r\nvllm/config/cache_more.py,sha256=keep,9\r\nvllm-1.dist-info/RECORD,,\r\n",
        record_hash(bytes),
        bytes.len()
    );
    assert_eq!(std::str::from_utf8(text).unwrap(), expected);
}

#[test]
fn an_edit_of_another_file_is_refused() {
    let index = index();
    let refused = |edits: &Edits, base: Option<&TreeIndex>| parts(edits, &Overlay::new(base), 5).unwrap_err();
    let unknown = refused(&edit(None), Some(&index));
    assert!(unknown.contains("sparklane image pin") && unknown.contains(&hex(OLD.as_bytes())), "{unknown}");
    let other = refused(&edit(Some(&"0".repeat(64))), Some(&index));
    assert!(other.contains(&hex(OLD.as_bytes())) && other.contains("layer 0"), "{other}");
    assert!(refused(&edit(Some(&"0".repeat(64))), None).contains("sparklane image pin"));
    let mut wrong = edit(Some(&hex(OLD.as_bytes())));
    wrong.edits[0].postimage = Some("1".repeat(64));
    assert!(refused(&wrong, Some(&index)).contains("it became"));
    wrong.edits[0].path = "/usr/none.py".into();
    assert!(refused(&wrong, Some(&index)).contains("no such file"));
}

#[test]
fn quoted_rows_keep_their_quotes() {
    let changed = [("s/a,b.py".to_owned(), b"x".to_vec())].into();
    let new = update_record("\"a,b.py\",sha256=o,1\nc,,\n", "s", &changed, &[]);
    assert_eq!(new, format!("\"a,b.py\",sha256={},1\nc,,\n", record_hash(b"x")));
}
