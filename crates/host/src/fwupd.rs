//! Firmware as fwupd knows it, by its D-Bus interface (`org.freedesktop.fwupd`, method `GetDevices`).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use zbus::OwnedVariant;

use crate::bus;

/// The daemon may have to be started first.
const LIMIT: Duration = Duration::from_secs(6);
/// Plugins of devices that are bought and changed by themselves: two machines may have other disks.
const STORAGE: [&str; 4] = ["nvme", "ata", "scsi", "emmc"];

/// Devices with their versions; `None` where no fwupd is installed.
///
/// # Errors
/// The bus's own words.
pub fn devices() -> Result<Option<BTreeMap<String, String>>, String> {
    let who = ("org.freedesktop.fwupd", "/", "org.freedesktop.fwupd", "GetDevices");
    match bus::call::<(), Vec<HashMap<String, OwnedVariant>>>(who, &(), LIMIT) {
        Ok(found) => Ok(Some(found.iter().filter_map(device).collect())),
        Err(why) if why.contains("ServiceUnknown") || why.contains("not activatable") => Ok(None),
        Err(why) => Err(why),
    }
}

/// Name and version. Two devices of a Spark share a name ("UEFI Device Firmware"), so the first of its GUIDs is part of it.
fn device(properties: &HashMap<String, OwnedVariant>) -> Option<(String, String)> {
    let text = |key: &str| properties.get(key)?.downcast_ref::<String>().ok();
    if STORAGE.contains(&text("Plugin").unwrap_or_default().as_str()) {
        return None;
    }
    let guids =
        properties.get("Guid").and_then(|v| Vec::<String>::try_from(v.try_clone().ok()?).ok()).unwrap_or_default();
    let guid: String = guids.into_iter().next().unwrap_or_default().chars().take(8).collect();
    let name = format!("{} {guid}", text("Name")?);
    Some((name.trim_end().to_owned(), text("Version")?))
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    fn of(properties: &[(&str, Variant<'_>)]) -> Option<(String, String)> {
        let owned = |v: &Variant<'_>| OwnedVariant::try_from(v.try_clone().unwrap()).unwrap();
        device(&properties.iter().map(|(key, value)| ((*key).to_owned(), owned(value))).collect())
    }

    #[test]
    fn two_devices_of_one_name_are_two_and_disks_are_none() {
        let uefi = |guid: &str, version: &'static str| {
            of(&[
                ("Name", Variant::from("UEFI Device Firmware")),
                ("Plugin", Variant::from("uefi_capsule")),
                ("Guid", Variant::from(vec![guid.to_owned(), "f".repeat(36)])),
                ("Version", Variant::from(version)),
                ("Flags", Variant::from(3_u64)),
            ])
            .unwrap()
        };
        let (one, two) = (uefi("11111111-0000", "0x0200980f"), uefi("22222222-0000", "0x00000516"));
        assert_eq!(one, ("UEFI Device Firmware 11111111".to_owned(), "0x0200980f".to_owned()));
        assert_ne!(one.0, two.0);
        assert_eq!(
            of(&[("Name", Variant::from("SSD")), ("Plugin", Variant::from("nvme")), ("Version", Variant::from("1"))]),
            None
        );
        assert_eq!(of(&[("Name", Variant::from("no version"))]), None);
        assert_eq!(of(&[("Name", Variant::from(7_u32)), ("Version", Variant::from("1"))]), None);
    }
}
