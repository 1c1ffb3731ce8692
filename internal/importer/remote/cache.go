package remote

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"io"
	"math"
	"sync"
)

const (
	blockSize = 1 << 20
	// cachedBlocks bounds the memory that blocks take.
	cachedBlocks = 16
	// maxRun is how many blocks one request asks for at most. Two such runs and what is being read fit
	// into the cache.
	maxRun = 4
	// maxSums bounds the memory for sums, of 16 bytes each.
	maxSums = 512 << 10
	// MaxCompared is the end of the part of a file, in bytes, of which what is read again is held against
	// what it was: 512 GiB. Behind it the validator alone tells that the file changed.
	MaxCompared = maxSums * blockSize
	// near is how many blocks a reader may be ahead of what is there and still reads forward: qemu-img has
	// a few requests at a time.
	near = 8
)

// sum tells blocks apart: a GMAC with a key that only this process knows. A server cannot find a second
// block with the same, for it never sees a sum. SHA-256 would do too, at a fraction of the speed.
type sum [16]byte

// newSummer makes the function that makes sums.
func newSummer() func([]byte) sum {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has the right length
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block has the right length
	}
	nonce := make([]byte, gcm.NonceSize())
	// The nonce is always the same, as no sum is told to anyone.
	return func(data []byte) sum { return sum(gcm.Seal(nil, nonce, nil, data)) }
}

// block is a part of the file.
type block struct {
	index int64
	data  []byte
	// ready is closed when data is whole, or err says why it is not.
	ready chan struct{}
	err   error
	// readers are those that copy from data.
	readers int
	// used is when the block was last asked for, counted in uses of the cache.
	used int64
}

// cache has the blocks that are there or on their way.
type cache struct {
	mu   sync.Mutex
	free sync.Cond // a block may have become free
	// size is the file's, in bytes.
	size int64
	// blocks are at most cachedBlocks.
	blocks map[int64]*block
	spare  [][]byte
	uses   int64
	// ahead is the block at which reading ahead ends.
	ahead int64
	// next is the block after the last run, and run that run's length.
	next, run int64
	// sums has the sum of each block that was read once, of the first maxSums.
	sums   []sum
	summer func([]byte) sum
	// seen is how many bytes of the file were read at least once, received how many came in all.
	seen, received int64
	// fetch begins to read the blocks of a run.
	fetch func(run []*block)
	// failed is why no more can be read.
	failed error
}

func (c *cache) init(size int64, fetch func(run []*block)) {
	c.fetch, c.ahead = fetch, math.MaxInt64
	c.free.L, c.size, c.blocks, c.summer = &c.mu, size, map[int64]*block{}, newSummer()
	if size > 0 {
		c.sums = make([]sum, min(c.total(), maxSums))
	}
}

// total is how many blocks the file has.
func (c *cache) total() int64 { return (max(c.size, 0) + blockSize - 1) / blockSize }

// known says whether a block was read once, as far as that is remembered.
func (c *cache) known(index int64) bool {
	return index < int64(len(c.sums)) && c.sums[index] != (sum{})
}

// length is how many bytes a block has.
func (c *cache) length(index int64) int64 { return min(blockSize, c.size-index*blockSize) }

// put stores a block that is there already.
func (c *cache) put(index int64, data []byte) {
	b := &block{index: index, data: c.buffer()[:len(data)], ready: make(chan struct{})}
	copy(b.data, data)
	close(b.ready)
	c.blocks[index] = b
	c.next, c.run = index+1, 1
	c.received += int64(len(data))
	c.check(b, c.summer(b.data))
}

// check remembers the sum of a block, or says whether the block is what it was. mu is held, or
// nobody else is there.
func (c *cache) check(b *block, got sum) bool {
	if c.known(b.index) {
		return c.sums[b.index] == got
	}
	c.seen += int64(len(b.data))
	if b.index < int64(len(c.sums)) {
		c.sums[b.index] = got
	}
	return true
}

// take returns the block, for reading, and begins to fetch what is wanted for it. It waits while there is
// no room. release must be called after reading.
func (c *cache) take(index int64) (*block, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.failed == nil && c.blocks[index] == nil {
		if !c.start(c.plan(index)) {
			c.free.Wait()
		}
	}
	if c.failed != nil {
		return nil, c.failed
	}
	b := c.blocks[index]
	b.readers++
	c.uses++
	b.used = c.uses
	// Reading goes forward, and is in the last run: the next is fetched meanwhile.
	if c.run > 1 && index >= c.next-c.run && index < c.next {
		c.start(c.next, min(2*c.run, maxRun, c.ahead-c.next))
	}
	return b, nil
}

// plan is the run to fetch for a block that is not there. If a block shortly before is there, reading goes
// forward, and what is between will be read too. But a block that is read again, and not in a row, is of
// the image's tables: what is around it has been read.
func (c *cache) plan(index int64) (first, length int64) {
	for first = index; first > max(0, index-near); first-- {
		if first < index && c.known(index) {
			break
		}
		if c.blocks[first-1] != nil {
			return first, max(min(2*c.run, maxRun, c.ahead-first), index-first+1)
		}
	}
	return index, 1
}

// start begins to fetch a run of blocks from index on, as long as there is room for it. It says whether
// there is any, and anything to fetch.
func (c *cache) start(index, length int64) bool {
	var run []*block
	for i := index; i < index+length && i < c.total() && c.blocks[i] == nil && c.room(); i++ {
		b := &block{index: i, data: c.buffer()[:c.length(i)], ready: make(chan struct{}), used: c.uses}
		c.blocks[i] = b
		run = append(run, b)
	}
	if run == nil {
		return false
	}
	c.next, c.run = index+int64(len(run)), int64(len(run))
	c.fetch(run)
	return true
}

// room forgets the block that was not used for longest, if there are too many.
func (c *cache) room() bool {
	if len(c.blocks) < cachedBlocks {
		return true
	}
	var oldest *block
	for _, b := range c.blocks {
		if b.readers == 0 && done(b) && (oldest == nil || b.used < oldest.used) {
			oldest = b
		}
	}
	if oldest == nil {
		return false
	}
	delete(c.blocks, oldest.index)
	c.spare = append(c.spare, oldest.data)
	return true
}

func (c *cache) buffer() []byte {
	if n := len(c.spare); n > 0 {
		b := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return b[:blockSize]
	}
	return make([]byte, blockSize)
}

func done(b *block) bool {
	select {
	case <-b.ready:
		return true
	default:
		return false
	}
}

func (c *cache) release(b *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.readers--
	c.free.Broadcast()
}

// finish says that a block is whole.
func (c *cache) finish(b *block) error {
	got := c.summer(b.data)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.check(b, got) {
		return final(ErrChanged)
	}
	close(b.ready)
	c.free.Broadcast()
	return nil
}

// fail ends all reading. run are the blocks that will not come.
func (c *cache) fail(run []*block, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	for _, b := range run {
		if !done(b) {
			b.err = err
			close(b.ready)
			delete(c.blocks, b.index)
		}
	}
	c.free.Broadcast()
}

// ReadAt reads as io.ReaderAt says. Several may read at the same time. After an error nothing more
// can be read.
func (f *File) ReadAt(p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		at := offset + int64(n)
		if at < 0 || at >= f.Size {
			return n, io.EOF
		}
		b, err := f.cache.take(at / blockSize)
		if err != nil {
			return n, err
		}
		<-b.ready
		if b.err == nil {
			n += copy(p[n:], b.data[at%blockSize:])
		}
		f.cache.release(b)
		if b.err != nil {
			return n, b.err
		}
	}
	return n, nil
}

// ReadTo says that reading goes on to an offset, and jumps there. So nothing is read ahead behind it.
func (f *File) ReadTo(end int64) {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	f.cache.ahead = (end + blockSize - 1) / blockSize
}

// Seen is how many bytes of the file were read, each counted once.
func (f *File) Seen() int64 {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	return f.cache.seen
}

// Received is how many bytes came from the server.
func (f *File) Received() int64 {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	return f.cache.received
}
