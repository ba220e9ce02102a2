"""A server of the Tinker API as they are ordinarily written in Python: FastAPI on uvicorn (uvloop, httptools), pydantic models
of the bodies, SQLModel over aiosqlite, and one row a request that is committed before the request is acknowledged. SQLite keeps
its write-ahead log and syncs it at every commit. Nothing is carried out: what such a server leaves to a second process.

  fastapi_server.py PORT DATABASE
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import Any, Literal
from uuid import uuid4

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlmodel import JSON, Field, SQLModel, select
from sqlmodel.ext.asyncio.session import AsyncSession


def now():
    return datetime.now(timezone.utc)


# What is kept.


class SessionRow(SQLModel, table=True):
    __tablename__ = "sessions"
    session_id: str = Field(primary_key=True)
    sdk_version: str
    created_at: datetime = Field(default_factory=now)
    last_heartbeat_at: datetime | None = None
    heartbeat_count: int = 0


class ModelRow(SQLModel, table=True):
    __tablename__ = "models"
    model_id: str = Field(primary_key=True)
    base_model: str
    lora_config: dict[str, Any] = Field(sa_type=JSON)
    session_id: str = Field(foreign_key="sessions.session_id", index=True)
    created_at: datetime = Field(default_factory=now)


class FutureRow(SQLModel, table=True):
    __tablename__ = "futures"
    request_id: int | None = Field(default=None, primary_key=True)
    request_type: str
    model_id: str | None = Field(default=None, index=True)
    request_data: dict[str, Any] = Field(sa_type=JSON)
    result_data: str | None = None
    status: str = Field(default="pending", index=True)
    created_at: datetime = Field(default_factory=now)
    completed_at: datetime | None = None


# What comes in.


class CreateSession(BaseModel):
    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str


class Heartbeat(BaseModel):
    session_id: str


class LoraConfig(BaseModel):
    rank: int


class CreateModel(BaseModel):
    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: LoraConfig


class Chunk(BaseModel):
    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class ModelInput(BaseModel):
    chunks: list[Chunk]


class TensorData(BaseModel):
    data: list[int] | list[float]
    dtype: Literal["int64", "float32"] | None = None
    shape: list[int] | None = None


class Datum(BaseModel):
    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]


class ForwardBackwardInput(BaseModel):
    data: list[Datum]
    loss_fn: Literal["cross_entropy", "importance_sampling", "ppo"]


class ForwardBackward(BaseModel):
    model_id: str
    seq_id: int | None = None
    forward_backward_input: ForwardBackwardInput


# What goes out.


class Created(BaseModel):
    session_id: str


class Alive(BaseModel):
    type: str = "session_heartbeat"


class Future(BaseModel):
    request_id: str
    model_id: str | None = None


class Health(BaseModel):
    status: str = "ok"


@asynccontextmanager
async def lifespan(app):
    engine = create_async_engine(f"sqlite+aiosqlite:///{sys.argv[2]}")

    @event.listens_for(engine.sync_engine, "connect")
    def set_pragmas(connection, _):
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA busy_timeout=30000")
        cursor.close()

    async with engine.begin() as connection:
        await connection.run_sync(SQLModel.metadata.create_all)
    app.state.engine = engine
    # Without this the writers of many requests wait for each other inside SQLite, which wakes them late.
    app.state.writing = asyncio.Lock()
    yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


async def database(request: Request):
    async with AsyncSession(request.app.state.engine, expire_on_commit=False) as session:
        yield session


async def add(request, session, row):
    session.add(row)
    async with request.app.state.writing:
        await session.commit()


async def add_future(request, session, kind, model_id, data):
    row = FutureRow(request_type=kind, model_id=model_id, request_data=data.model_dump())
    await add(request, session, row)
    return Future(request_id=str(row.request_id), model_id=model_id)


@app.get("/api/v1/healthz", response_model=Health)
async def healthz():
    return Health()


@app.post("/api/v1/create_session", response_model=Created)
async def create_session(body: CreateSession, request: Request, session: AsyncSession = Depends(database)):
    row = SessionRow(session_id=f"session-{uuid4().hex[:8]}", sdk_version=body.sdk_version)
    await add(request, session, row)
    return Created(session_id=row.session_id)


@app.post("/api/v1/session_heartbeat", response_model=Alive)
async def session_heartbeat(body: Heartbeat, request: Request, session: AsyncSession = Depends(database)):
    row = await session.get(SessionRow, body.session_id)
    if row is None:
        raise HTTPException(404, "there is no such session")
    row.last_heartbeat_at = now()
    row.heartbeat_count += 1
    await add(request, session, row)
    return Alive()


@app.post("/api/v1/create_model", response_model=Future)
async def create_model(body: CreateModel, request: Request, session: AsyncSession = Depends(database)):
    model = ModelRow(model_id=f"{body.session_id}:train:{body.model_seq_id}", base_model=body.base_model,
                     lora_config=body.lora_config.model_dump(), session_id=body.session_id)
    session.add(model)
    return await add_future(request, session, "create_model", model.model_id, body)


@app.post("/api/v1/forward_backward", response_model=Future)
async def forward_backward(body: ForwardBackward, request: Request, session: AsyncSession = Depends(database)):
    found = await session.exec(select(ModelRow).where(ModelRow.model_id == body.model_id))
    if found.first() is None:
        raise HTTPException(404, "there is no such model")
    return await add_future(request, session, "forward_backward", body.model_id, body.forward_backward_input)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
