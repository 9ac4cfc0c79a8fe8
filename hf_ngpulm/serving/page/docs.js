// Shows /openapi.json; a server that wants a key is opened as /docs#key=KEY.
const key = new URLSearchParams(location.hash.slice(1)).get("key");

function add(parent, name, text = "") {
  const child = document.createElement(name);
  child.textContent = text;
  parent.append(child);
  return child;
}

function kindOf(schema) {
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  if ("const" in schema) return schema.const;
  if (schema.items) return `list of ${kindOf(schema.items)}`;
  const bounds = "minimum" in schema ? ` from ${schema.minimum} to ${schema.maximum}` : "";
  return (schema.enum?.join(", ") ?? schema.format ?? schema.type ?? "") + bounds;
}

function showForm(section, path, { properties, required }) {
  add(section, "pre", `curl ${location.origin}${path}${key ? " -H 'Authorization: Bearer KEY'" : ""} -F file=@audio.flac`);
  const table = add(section, "table");
  const head = add(table, "tr");
  for (const title of ["field", "values", "default", ""]) add(head, "th", title);
  for (const [name, schema] of Object.entries(properties)) {
    const row = add(table, "tr");
    const preset = required.includes(name) ? "(required)" : [schema.default ?? ""].flat().join(", ");
    for (const cell of [name, kindOf(schema), preset, schema.description ?? ""]) add(row, "td", cell);
  }
}

const response = await fetch("openapi.json", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
if (!response.ok) {
  document.getElementById("state").textContent = `the description can't be had (${response.status}); with a key open /docs#key=KEY`;
} else {
  for (const [path, operations] of Object.entries((await response.json()).paths)) {
    for (const [method, { summary, description, requestBody }] of Object.entries(operations)) {
      const section = add(document.getElementById("paths"), "section");
      add(section, "h2", `${method.toUpperCase()} ${path}`);
      add(section, "p", [summary, description].filter(Boolean).join(" "));
      if (requestBody) showForm(section, path, requestBody.content["multipart/form-data"].schema);
    }
  }
}
