// node --test apiserver/web/api.test.mjs, or make web-check
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { act, follow, mayMigrate, takesUploads } from './page/api.js';
import { send } from './page/upload.js';

test('watches that end at once are not asked for without pause', async () => {
  let lists = 0;
  let watches = 0;
  globalThis.fetch = async (url, { signal }) => {
    await new Promise(setImmediate);
    signal.throwIfAborted();
    if (!url.searchParams.get('watch')) {
      lists++;
      return new Response(JSON.stringify({ metadata: { resourceVersion: '1' }, items: [] }));
    }
    if (watches++ === 0) setTimeout(() => end.abort(), 500);
    return new Response('');
  };
  const end = new AbortController();
  await follow({ resource: 'virtualmachines', key: (object) => object.metadata.uid, changed() {}, problem() {}, signal: end.signal });
  assert.equal(lists, 1);
  assert.equal(watches, 1);
});

test('images are offered unless CDI takes them', async () => {
  const answers = (ours, volumes) => { globalThis.fetch = async (url) => new Response(JSON.stringify({ resources: (url.pathname.includes('subresources') ? ours : volumes).map((name) => ({ name })) })); };
  answers(['virtualmachines/start', 'datavolumes/upload'], ['datavolumes', 'datasources']);
  assert.equal(await takesUploads(), true);
  answers(['virtualmachines/start', 'datavolumes/upload'], ['datavolumes', 'cdis']);
  assert.equal(await takesUploads(), false);
  answers(['virtualmachines/start'], ['datavolumes']);
  assert.equal(await takesUploads(), false);
  globalThis.fetch = async () => new Response('{}', { status: 503 });
  await assert.rejects(takesUploads());
});

test('migrations are asked for, and cancelled by deletion', async () => {
  const asked = [];
  globalThis.fetch = async (url, { method, body }) => {
    asked.push(`${method} ${url.pathname.slice(url.pathname.indexOf('apis/'))}`);
    return new Response(JSON.stringify({ status: { allowed: JSON.parse(body ?? '{}').spec?.resourceAttributes.namespace === 'ns' } }));
  };
  const machine = { namespace: 'ns', name: 'm', vmi: { status: { migrationState: { migrationName: 'go' } } } };
  await act(machine, 'migrate');
  await act(machine, 'migrate-cancel');
  assert.equal(await mayMigrate('ns'), true);
  assert.equal(await mayMigrate('other'), false);
  assert.deepEqual(asked.slice(0, 3), ['PUT apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachines/m/migrate',
    'DELETE apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstancemigrations/go', 'POST apis/authorization.k8s.io/v1/selfsubjectaccessreviews']);
});

/** A Server is the other end of a websocket: it takes what is sent when it is told to. */
class Server extends EventTarget {
  got = 0;
  largest = 0;
  closed = false;
  send(bytes) { this.got += bytes.byteLength; this.largest = Math.max(this.largest, bytes.byteLength); }
  close() { this.closed = true; }
  say(word) { this.dispatchEvent(Object.assign(new Event('message'), { data: JSON.stringify(word) })); }
  breaks() { this.dispatchEvent(new Event('close')); }
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 20));
const begin = (size) => {
  const server = new Server(), end = new AbortController(), told = [];
  const done = send(new Blob([new Uint8Array(size)]), server, (taken) => told.push(taken), end.signal);
  return { server, end, told, done };
};

test('a file is sent in pieces, and no more of it than virt-api wants', async () => {
  const size = 3 << 20, window = 700000;
  const { server, told, done } = begin(size);
  await settled();
  assert.equal(server.got, 0, 'before the first word');
  for (let taken = 0; taken < size; taken = server.got) {
    server.say({ taken, window });
    server.say({ taken, window });
    await settled();
    assert.equal(server.got, Math.min(size, taken + window));
  }
  server.say({ taken: size, window, done: true });
  await done;
  assert.ok(server.closed && server.largest <= 256 << 10, `${server.largest}`);
  assert.equal(told.at(-1), size);
});

test('an upload ends with the reason that virt-api says, by who sends it, or when the connection breaks', async () => {
  const refused = begin(1 << 20);
  refused.server.say({ taken: 0, window: 1000, refused: 'the disk is smaller' });
  await assert.rejects(refused.done, { message: 'the disk is smaller' });
  await settled();
  assert.equal(refused.server.got, 0);
  const cancelled = begin(1 << 20);
  cancelled.server.say({ taken: 0, window: 1000 });
  cancelled.end.abort();
  await assert.rejects(cancelled.done, { name: 'AbortError' });
  assert.ok(cancelled.server.closed);
  const broken = begin(1 << 20);
  broken.server.breaks();
  await assert.rejects(broken.done, { message: '' });
});
