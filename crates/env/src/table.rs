//! One line for each variant makes its module, its place in the settings and its tag.

/// Makes the modules, the tagged settings enum and the registry of a family.
///
/// A setting's tag `kind` is read first and then exactly the fields of that kind, so an unknown key is refused with the list
/// of known ones.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident: $family:ident; $($module:ident => $variant:ident: $about:literal;)+) => {
        $(#[doc = $about] pub mod $module;)+

        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $(#[doc = $about] $variant($module::Settings),)+
        }

        impl $name {
            /// Every kind with a line about it, in the order of the table.
            pub const TABLE: &'static [(&'static str, &'static str)] = &[$((stringify!($module), $about),)+];

            /// The tag.
            pub fn tag(&self) -> &'static str {
                match self { $(Self::$variant(_) => stringify!($module),)+ }
            }

            pub(crate) fn family(&self) -> &dyn $family {
                match self { $(Self::$variant(settings) => settings,)+ }
            }

            /// Reads the kind and takes it and its fields from a map that holds nothing else.
            pub(crate) fn from_map(mut map: serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
                let tag = map.remove("kind").ok_or("missing field `kind`")?;
                let fields = serde_json::Value::Object(map);
                match tag.as_str() {
                    $(Some(stringify!($module)) => serde_json::from_value(fields)
                        .map(Self::$variant)
                        .map_err(|e| format!("kind `{}`: {e}", stringify!($module))),)+
                    _ => {
                        let known: Vec<String> = Self::TABLE.iter().map(|(tag, _)| format!("`{tag}`")).collect();
                        Err(format!("unknown kind `{}`, needed one of {}", shown(&tag), known.join(", ")))
                    }
                }
            }

            /// The tag and the fields.
            pub(crate) fn to_map(&self) -> serde_json::Map<String, serde_json::Value> {
                let fields = match self { $(Self::$variant(settings) => serde_json::to_value(settings),)+ };
                let mut map = serde_json::Map::new();
                map.insert("kind".to_owned(), self.tag().into());
                if let Ok(serde_json::Value::Object(fields)) = fields {
                    map.extend(fields);
                }
                map
            }
        }

        fn shown(tag: &serde_json::Value) -> String {
            tag.as_str().map_or_else(|| tag.to_string(), str::to_owned)
        }
    };
}
