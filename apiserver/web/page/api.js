// The API server, on this page's own origin: every right is that of who looks.

// Whatever there is before the path of the API (a proxy's, say) stays before it.
const base = new URL('../../../../', import.meta.url);

/** Refused is an answer of the API server's, in its words. */
export class Refused extends Error {
  constructor(code, message, reason) {
    super(message);
    this.code = code;
    this.reason = reason;
  }
}

async function refusal(response) {
  let status;
  try {
    status = await response.json();
  } catch {
    status = {};
  }
  return new Refused(response.status, status.message || `the API server answers ${response.status} ${response.statusText}`, status.reason);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, base), { cache: 'no-store', redirect: 'error', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused(0, 'The API server does not answer.');
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

const objects = (group, namespace, resource) => `apis/${group}/v1/${namespace ? `namespaces/${encodeURIComponent(namespace)}/` : ''}${resource}`;

function subresource(machine, resource, sub) {
  return `${objects('subresources.kubevirt.io', machine.namespace, resource)}/${encodeURIComponent(machine.name)}/${sub}`;
}

/** act asks for a verb: of the VM for start, stop, restart and migrate, of the VMI for others. A migration is cancelled by its deletion. */
export async function act(machine, verb) {
  if (verb === 'migrate-cancel') {
    const { migrationName } = machine.vmi.status.migrationState;
    await request(`${objects('kubevirt.io', machine.namespace, 'virtualmachineinstancemigrations')}/${encodeURIComponent(migrationName)}`, { method: 'DELETE' });
    return;
  }
  const resource = ['start', 'stop', 'restart', 'migrate'].includes(verb) ? 'virtualmachines' : 'virtualmachineinstances';
  await request(subresource(machine, resource, verb), { method: 'PUT', headers: { 'Content-Type': 'application/json' }, body: '{}' });
}

/** mayMigrate says whether the user may move guests of a namespace, or with an empty name, of all. */
export async function mayMigrate(namespace) {
  const resourceAttributes = { namespace, verb: 'update', group: 'subresources.kubevirt.io', resource: 'virtualmachines', subresource: 'migrate' };
  const body = JSON.stringify({ apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', spec: { resourceAttributes } });
  const answer = await request('apis/authorization.k8s.io/v1/selfsubjectaccessreviews', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
  return (await answer.json()).status.allowed;
}

const streamPath = (machine, stream) => subresource(machine, 'virtualmachineinstances', stream);

/** streamAddress is where a console or vnc is connected to. */
export const streamAddress = (machine, stream) => socketAddress(streamPath(machine, stream));

function socketAddress(path) {
  const url = new URL(path, base);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  return url.href;
}

/** The one subprotocol of KubeVirt's streams: bytes, in messages whose bounds mean nothing. */
export const protocol = 'plain.kubevirt.io';

/**
 * whyNot asks why a stream cannot be had, which browsers do not say of websockets. An
 * answer of 400 is "this is a websocket": there is nothing else wrong with it.
 */
export const whyNot = (machine, stream) => whyNoSocket(streamPath(machine, stream));

async function whyNoSocket(path) {
  try {
    await request(path);
  } catch (error) {
    if (error.code !== 400 || !/websocket/.test(error.message)) return error.message;
  }
  return '';
}

const uploadPath = (namespace, volume, size) => `${objects('subresources.kubevirt.io', namespace, 'datavolumes')}/${encodeURIComponent(volume)}/upload?size=${size}`;

/** uploadAddress is where the image of a DataVolume is sent to. */
export const uploadAddress = (namespace, volume, size) => socketAddress(uploadPath(namespace, volume, size));

/** The subprotocol of images. */
export const uploadProtocol = 'upload.kubeqemu.io';

/** whyNoUpload asks why an image cannot be sent. */
export const whyNoUpload = (namespace, volume, size) => whyNoSocket(uploadPath(namespace, volume, size));

/** takesUploads says whether virt-api takes images. Where CDI is installed, uploads are CDI's. */
export async function takesUploads() {
  const resources = async (version) => (await (await request(`apis/${version}`)).json()).resources.map((resource) => resource.name);
  const [ours, volumes] = await Promise.all([resources('subresources.kubevirt.io/v1'), resources('cdi.kubevirt.io/v1beta1')]);
  return ours.includes('datavolumes/upload') && !volumes.includes('cdis');
}

/**
 * follow keeps a Map of all objects of a kind, by key, and calls changed when it is
 * another, until the signal ends it. problem is called with an Error, and with null when
 * it is over. Who may not list is not asked again.
 */
export async function follow({ namespace, resource, key, changed, problem, signal }) {
  const path = objects('kubevirt.io', namespace, resource);
  for (let delay = 1000; !signal.aborted; delay = Math.min(2 * delay, 30000)) {
    try {
      let { map, version } = await list(path, key, signal);
      changed(map);
      problem(null);
      delay = 500;
      while (version) {
        const begun = Date.now();
        version = await watch(path, version, map, key, () => changed(map), signal);
        // Who ends it at once (a proxy, an API server that goes down) is not asked without pause.
        if (version && Date.now() - begun < 1000) await pause(1000, signal);
      }
    } catch (error) {
      if (signal.aborted) return;
      problem(error instanceof Refused ? error : new Refused(0, 'The connection to the API server broke.'));
      if (error.code === 401 || error.code === 403) return;
    }
    await pause(delay, signal);
  }
}

async function list(path, key, signal) {
  const map = new Map();
  let next = '';
  for (;;) {
    const parameters = new URLSearchParams({ limit: '500', ...(next && { continue: next }) });
    const page = await (await request(`${path}?${parameters}`, { signal })).json();
    for (const object of page.items) map.set(key(object), object);
    next = page.metadata.continue;
    if (!next) return { map, version: page.metadata.resourceVersion };
  }
}

/** watch returns the version to go on from, or '' when it is too old to do so. */
async function watch(path, version, map, key, changed, signal) {
  const parameters = new URLSearchParams({ watch: 'true', allowWatchBookmarks: 'true', resourceVersion: version, timeoutSeconds: '240' });
  const response = await request(`${path}?${parameters}`, { signal });
  for await (const line of lines(response.body)) {
    const { type, object } = JSON.parse(line);
    if (type === 'ERROR') return '';
    version = object.metadata.resourceVersion;
    if (type === 'BOOKMARK') continue;
    if (type === 'DELETED') map.delete(key(object));
    else map.set(key(object), object);
    changed();
  }
  return version;
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = ''; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split('\n');
      rest = parts.pop();
      yield* parts.filter((part) => part);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** pause waits, or until the signal ends it. */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
