const $ = (id) => document.getElementById(id);
let session = null; // what is running: the socket, the audio and the microphone
// A server that wants a key is opened as /#key=KEY, which browsers don't send; websockets name it as a subprotocol.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
const protocols = ["realtime", ...(key ? [`openai-insecure-api-key.${key}`] : [])];
const headers = key ? { Authorization: `Bearer ${key}` } : {};
const RECORDINGS = "/v1/audio/transcriptions", LIVE = "/v1/realtime";

function phrases() {
  return $("phrases").value.split("\n").map((line) => line.trim()).filter(Boolean);
}

function tell(state) {
  $("state").textContent = state;
}

function show({ text, stable }) {
  const fixed = text.startsWith(stable) ? stable : "";
  $("stable").textContent = fixed;
  $("unstable").textContent = text.slice(fixed.length);
}

function keep(text) {
  const line = document.createElement("p");
  line.textContent = text;
  if (text) $("text").insertBefore(line, $("current"));
  show({ text: "", stable: "" });
}

// Phrases that the recogniser can't write are shown, not dropped in silence.
function warn(warnings) {
  $("unwritable").textContent = (warnings ?? []).join("; ");
}

// What the server has: live audio, and language models.
async function ask() {
  const response = await fetch("openapi.json", { headers });
  if (!response.ok) throw new Error(response.status === 401 ? "a key is needed: open /#key=KEY" : `the server says ${response.status}`);
  const { paths } = await response.json();
  $("microphone").hidden = !(LIVE in paths);
  const { lm } = paths[RECORDINGS].post.requestBody.content["multipart/form-data"].schema.properties;
  $("models").hidden = !lm;
  $("lm").replaceChildren(...(lm?.enum ?? []).map((name) => new Option(name, name)));
}

async function transcribe(file) {
  const form = new FormData();
  form.append("file", file);
  form.append("hotwords", JSON.stringify(phrases()));
  if ($("lm").value) form.append("lm", $("lm").value);
  const response = await fetch(RECORDINGS, { method: "POST", headers, body: form });
  const { text, warnings, error } = await response.json();
  if (error) throw new Error(error.message);
  warn(warnings);
  keep(text);
}

function say(event) {
  if (session?.socket.readyState === WebSocket.OPEN) session.socket.send(JSON.stringify(event));
}

function update(input) {
  say({ type: "session.update", session: { type: "transcription", audio: { input } } });
}

async function start() {
  if (!navigator.mediaDevices) throw new Error("browsers give it to pages of this machine and of https:// addresses only");
  session = {};
  const microphone = (session.microphone = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } }));
  const audio = (session.audio = new AudioContext());
  await audio.audioWorklet.addModule("worklet.js");
  const source = audio.createMediaStreamSource(microphone);
  const pieces = new AudioWorkletNode(audio, "pieces", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${LIVE}?intent=transcription`, protocols);
  Object.assign(session, { pieces, socket });
  socket.onopen = () => {
    const format = { type: "audio/pcm", rate: Math.round(audio.sampleRate) };
    update({ format, transcription: { keywords: phrases(), lm: $("lm").value || undefined, partials: true } });
    source.connect(pieces);
    $("microphone").disabled = false;
    tell("listening");
  };
  pieces.port.onmessage = ({ data }) => {
    if (data !== "end") {
      say({ type: "input_audio_buffer.append", audio: btoa(String.fromCharCode(...new Uint8Array(data))) });
      return;
    }
    say({ type: "input_audio_buffer.commit" });
    say({ type: "input_audio_buffer.clear" }); // is answered after the commit: all has been said by then
  };
  socket.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    const kind = event.type.replace("conversation.item.input_audio_transcription.", "");
    if (kind === "partial") show(event);
    else if (kind === "completed") keep(event.transcript);
    else if (kind === "session.updated") warn(event.warnings);
    else if (kind === "input_audio_buffer.cleared") socket.close(1000);
    else if (kind === "error" && event.error.code !== "input_audio_buffer_commit_empty") tell(event.error.message);
  };
  socket.onclose = ({ code, reason }) => {
    stop();
    tell(code === 1000 ? "" : reason || "the connection was lost");
  };
}

function stop() {
  session?.microphone?.getTracks().forEach((track) => track.stop());
  session?.audio?.close();
  session = null;
  $("microphone").disabled = false;
  $("microphone").setAttribute("aria-pressed", "false");
}

$("microphone").onclick = async () => {
  $("microphone").disabled = true; // until it listens, or all has been said
  if (session) {
    session.pieces.port.postMessage("end");
    session.microphone.getTracks().forEach((track) => track.stop());
    tell("finishing");
    return;
  }
  $("microphone").setAttribute("aria-pressed", "true");
  tell("");
  try {
    await start();
  } catch (error) {
    stop();
    tell(`no microphone: ${error.message}`);
  }
};

$("choose").onclick = () => $("file").click();

$("file").onchange = async () => {
  const [file] = $("file").files;
  if (!file) return;
  $("choose").disabled = true; // one at a time
  tell(`transcribing ${file.name}`);
  try {
    await transcribe(file);
    tell("");
  } catch (error) {
    tell(`${file.name}: ${error.message}`);
  }
  $("choose").disabled = false;
  $("file").value = ""; // the same one may be chosen again
};

$("copy").onclick = async () => {
  const lines = [...$("text").querySelectorAll("p")].map((line) => line.textContent).filter(Boolean);
  try {
    await navigator.clipboard.writeText(lines.join("\n"));
    tell("copied");
  } catch { // browsers let pages of this machine and of https:// addresses do it only
    getSelection().selectAllChildren($("text"));
    tell("selected: copy it with Ctrl-C");
  }
};

$("clear").onclick = () => {
  $("text").replaceChildren($("current"));
  tell("");
};

ask().catch((error) => tell(error.message));

$("phrases").onchange = () => update({ transcription: { keywords: phrases() } });
